/* The most that a model may have: bounds against absurd files, far above what the largest known one has (126 layers;
 * 384 experts in each of 60). Whoever reads such numbers, from whichever file, refuses more. */
#ifndef BASE_MODEL_LIMITS_H
#define BASE_MODEL_LIMITS_H

enum {
    LIMIT_LAYERS = 4096,
    LIMIT_MTP = 8,              /* layers for multi-token prediction that are used */
    LIMIT_EXPERTS = 65536,      /* of a layer */
    LIMIT_ALL_EXPERTS = 1 << 20 /* of the layer with most, times layers with experts: the size of tables by both */
};

#endif
