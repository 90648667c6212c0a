/* What operations count of their work (vk_counters.c), four dwords for each counter: units of work, and what was read once
 * or more. Both are low + 256 high, so that nothing wraps before it is collected, and no thread waits for what an atomic
 * returns. */
layout(set = 0, binding = 1, std430) buffer Counters {
    uint d[];
} counters;

/* For one thread of an operation. */
void count_work(uint counter, uint work, uint read)
{
    uint at = 4 * counter;
    atomicAdd(counters.d[at], work & 255u);
    atomicAdd(counters.d[at + 1], work >> 8);
    atomicAdd(counters.d[at + 2], read & 255u);
    atomicAdd(counters.d[at + 3], read >> 8);
}
