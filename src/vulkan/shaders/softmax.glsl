/* Running softmaxes of attention, and how two are folded into one. */
struct Softmax {
    float most, sum;
};

const float NOTHING = -3.402823466e38;

/* Folds b into a, and returns the factors of their accumulated values. */
vec2 fold(inout Softmax a, Softmax b)
{
    float most = max(a.most, b.most);
    precise float fa = exp_of(a.most - most), fb = exp_of(b.most - most);
    precise float sum = fma(b.sum, fb, a.sum * fa);
    a = Softmax(most, sum);
    return vec2(fa, fb);
}

float fold_value(vec2 f, float a, float b)
{
    precise float y = fma(b, f.y, a * f.x);
    return y;
}
