/* A product of rows of weights with up to TILE rows of activations. A workgroup takes sixteen rows of one matrix, or, of
 * gate and up, those of two (N_PART), with 128 threads for each.
 *
 * Thread (split, lane) multiplies units split, split + SPLIT, ... of rows 4 lane to 4 lane + 3: for each a chain of fused
 * multiply-adds, step by step. The splits' sums are added in ascending order. An element depends on nothing else, so that
 * a row of activations gives the same bits alone and among others. What a thread loads of the activations serves its
 * four rows, and what it unpacks of the weights all activations.
 *
 * A shader defines N_PART before it includes this. Where it defines LANES, too, a workgroup has but 4 * LANES rows. */
#include "types.glsl"
#include "integers.glsl"

layout(constant_id = 2) const uint TILE = 1;
layout(constant_id = 3) const uint STAGED = 0; /* elements of one row of x that the workgroup keeps; 0: x is in memory */
layout(constant_id = 4) const uint BY_FOUR = 0; /* rows of x are whole units and begin at multiples of 16 bytes */
layout(constant_id = 5) const uint INTEGER = 0; /* one of FLOATS to ROUNDED_NORMED */

#ifndef LANES
#define LANES (ROWS / MINE)
#endif
const uint PART_THREADS = 128, N_THREAD = PART_THREADS * N_PART, SPLIT = PART_THREADS / LANES, PART_ROWS = LANES * MINE;
const uint AHEAD = IS_FLOAT ? 4 : STEP_QUADS; /* quads that are loaded before any is used */
const uint ADD_TILE = TILE * N_PART < 4 ? TILE : 4 / N_PART; /* rows of activations whose sums are added at a time */

const bool ROUNDS_HERE = INTEGER == ROUNDED || INTEGER == ROUNDED_NORMED;

shared float products[N_PART * TILE * PART_ROWS];
const uint STAGED_FOURS = ROUNDS_HERE ? 0 : STAGED / 4;
shared FOUR staged[STAGED_FOURS + STAGED_FOURS / 8 + 1];
#ifdef WIDE /* loads of shared memory take as long as those of memory (common.glsl) */
shared uint64_t partial_sums[N_PART * ADD_TILE * SPLIT * PART_ROWS / 2];
#else
shared vec2 partial_sums[N_PART * ADD_TILE * SPLIT * PART_ROWS / 2];
#endif
uint x_at[TILE]; /* where each row of activations begins, in floats */

/* The thread's number among those of its matrix, and the matrix's. */
uint part_tid()
{
    return gl_LocalInvocationID.x % PART_THREADS;
}

uint my_part()
{
    return gl_LocalInvocationID.x / PART_THREADS;
}

/* Elements 4 i and on of the staged row. A gap behind each 32 puts what threads read together into different banks. */
vec4 staged_four(uint i)
{
    return uintBitsToFloat(unpack_four(staged[i + i / 8]));
}

void stage_four(uint i, vec4 x)
{
    staged[i + i / 8] = pack_four(floatBitsToUint(x));
}

/* A thread's sums of two rows of weights. */
void put_sums(uint i, vec2 x)
{
#ifdef WIDE
    partial_sums[i] = pack64(floatBitsToUint(x));
#else
    partial_sums[i] = x;
#endif
}

vec2 sums_at(uint i)
{
#ifdef WIDE
    return uintBitsToFloat(unpack32(partial_sums[i]));
#else
    return partial_sums[i];
#endif
}

/* What a shader does with its row of activations before the product: it is rounded or normed where that is asked for. All
 * threads call it once. */
void stage_row();

#include "product_norm.glsl"
#include "product_integers.glsl"

vec4 load_x(Floats x, uint at, uint e, uint k)
{
    if (STAGED != 0)
        return staged_four(e / 4);
    if (BY_FOUR != 0)
        return uintBitsToFloat(four_at(uvec2(x), at + e));
    vec4 y = vec4(0);
    [[unroll]] for (uint j = 0; j < 4; j++)
        if (e + j < k)
            y[j] = x.d[at + e + j];
    return y;
}

/* Adds the splits' sums of rows t0 and on of the activations. */
void add_sums(vec4 sums[TILE], uint t0)
{
    const uint EACH = SPLIT * PART_ROWS; /* sums of a row of activations */
    uint tid = part_tid(), first = my_part() * ADD_TILE * EACH;
    if (t0 > 0)
        barrier(); /* all have read what was there before */
    [[unroll]] for (uint t = 0; t < ADD_TILE && t0 + t < TILE; t++)
        [[unroll]] for (uint r = 0; r < MINE; r += 2)
            put_sums((first + t * EACH + tid * MINE + r) / 2, vec2(sums[t0 + t][r], sums[t0 + t][r + 1]));
    barrier();
    uint i = 2 * tid, from = first + i / PART_ROWS * EACH + i % PART_ROWS; /* no thread has more than two */
    if (i < ADD_TILE * PART_ROWS && t0 * PART_ROWS + i < TILE * PART_ROWS) {
        precise vec2 sum = sums_at(from / 2);
        for (uint s = 1; s < SPLIT; s++)
            sum += sums_at((from + s * PART_ROWS) / 2);
        uint at = (my_part() * TILE + t0) * PART_ROWS + i;
        products[at] = sum.x;
        products[at + 1] = sum.y;
    }
}

void multiply_floats(Words w, uint row0, Floats x, uint k, out vec4 sums[TILE])
{
    uint tid = part_tid();
    precise vec4 acc[TILE];
    for (uint t = 0; t < TILE; t++)
        acc[t] = vec4(0);
    uint u = tid / LANES, n_unit = row_units(k);
    if (u < n_unit) do {
        begin_unit(w, row0 + tid % LANES * MINE, u);
        uint step = 0;
        do {
            mat4 four[AHEAD];
            [[unroll]] for (uint i = 0; i < AHEAD; i++) {
                if (i % STEP_QUADS == 0)
                    begin_step(step + i / STEP_QUADS);
                four[i] = weights(step + i / STEP_QUADS, i % STEP_QUADS);
            }
            [[unroll]] for (uint i = 0; i < AHEAD; i++) {
                [[unroll]] for (uint t = 0; t < TILE; t++) {
                    vec4 xs = load_x(x, x_at[t], u * UNIT + 4 * (step + i / STEP_QUADS + i % STEP_QUADS * STEPS), k);
                    [[unroll]] for (uint j = 0; j < 4; j++)
                        acc[t] = fma(four[i][j], vec4(xs[j]), acc[t]);
                }
            }
            step += AHEAD / STEP_QUADS;
        } while (step < STEPS);
        u += SPLIT;
    } while (u < n_unit);
    [[unroll]] for (uint t = 0; t < TILE; t++)
        sums[t] = acc[t];
}

/* Leaves row i % PART_ROWS of the weights with row i / PART_ROWS of the activations in products[i], and those of a second
 * matrix behind the first one's. w: sixteen rows of the thread's matrix, of which PART_ROWS from number row0 on are
 * multiplied. x: rounded rows where the product is one of integers that are in memory. All types' code is in here, before a
 * driver knows the type: a shader has it once, in one call. */
void multiply(Words w, uint row0, Floats x, uint k)
{
    vec4 sums[TILE];
    if (INTEGER == FLOATS) {
        stage_row();
        multiply_floats(w, row0, x, k, sums);
    } else {
        multiply_integers(w, row0, x, k, sums);
    }
    [[unroll]] for (uint t0 = 0; t0 < TILE; t0 += ADD_TILE)
        add_sums(sums, t0);
    barrier();
}
