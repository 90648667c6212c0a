#include "base/near.h"

#include <string.h>

enum { WIDTH = 2 * NEAR_MAX + 1, FAR = NEAR_MAX + 1 };

static int least(int a, int b)
{
    return a < b ? a : b;
}

int near_limit(size_t n)
{
    return n < (size_t)(3 * NEAR_MAX) ? (int)(n + 2) / 3 : NEAR_MAX;
}

/* Row i of the table of distances between beginnings of a and b holds columns i - NEAR_MAX to i + NEAR_MAX alone: the
 * others are too far. */
int near_distance(const char *a, const char *b)
{
    int n_a = (int)strlen(a), n_b = (int)strlen(b);
    int rows[3][WIDTH + 2], *old = rows[0], *last = rows[1], *now = rows[2]; /* with a FAR column at either end */
    if (n_a - n_b > NEAR_MAX || n_b - n_a > NEAR_MAX)
        return FAR;
    for (int k = 0; k < WIDTH + 2; k++)
        rows[0][k] = rows[1][k] = rows[2][k] = FAR;
    for (int i = 0; i <= n_a; i++) {
        int nearest = FAR;
        for (int k = 1; k <= WIDTH; k++) {
            int j = i + k - 1 - NEAR_MAX, d = FAR;
            if (i == 0 && j >= 0)
                d = least(j, FAR);
            if (i > 0 && j >= 0 && j <= n_b) {
                d = least(last[k + 1], now[k - 1]) + 1;
                if (j > 0)
                    d = least(d, last[k] + (a[i - 1] != b[j - 1]));
                if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                    d = least(d, old[k] + 1);
            }
            now[k] = least(d, FAR);
            nearest = least(nearest, now[k]);
        }
        if (nearest == FAR)
            return FAR;
        int *oldest = old;
        old = last;
        last = now;
        now = oldest;
    }
    return last[n_b - n_a + NEAR_MAX + 1];
}
