/* What operations count of their work, four dwords for each counter: units of work in 64 bits; what was read once or
 * more (vk_counters.c). */
layout(set = 0, binding = 1, std430) buffer Counters {
    uint d[];
} counters;

/* For one thread of an operation. */
void count_work(uint counter, uint work, uint read)
{
    uint at = 4 * counter, before = atomicAdd(counters.d[at], work);
    if (before + work < before)
        atomicAdd(counters.d[at + 1], 1);
    atomicAdd(counters.d[at + 2], read);
}
