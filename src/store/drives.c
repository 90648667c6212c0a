#include "store/drives.h"

/* A speed is taken anew every WINDOW_NS of busy time. slowest: the least share, of the fastest drive's. */
static const int64_t window_ns = 30 * 1000 * 1000;
static const double slowest = 1.0 / 64, max_credit_reads = 32;
enum { SLOW_FOR_GOOD = 8, USUAL_WINDOWS = 32 };

void drive_begin(struct drive *d, uint64_t n_bytes, int64_t now_ns)
{
    if (d->n_flying++ == 0)
        d->progress_ns = now_ns;
    d->flying_bytes += n_bytes;
}

void drive_end(struct drive *d, uint64_t n_bytes, bool arrived, int64_t now_ns)
{
    d->n_flying--;
    d->flying_bytes -= n_bytes;
    d->window_bytes += arrived ? n_bytes : 0;
    d->window_ns += now_ns - d->progress_ns;
    d->progress_ns = now_ns;
    if (!arrived || d->window_ns < window_ns)
        return;
    double rate = (double)d->window_bytes * 1e9 / (double)d->window_ns;
    d->bytes_per_s = d->bytes_per_s > 0 ? (d->bytes_per_s + rate) / 2 : rate;
    d->window_bytes = 0;
    d->window_ns = 0;
    if (d->usual_bytes_per_s <= 0)
        d->usual_bytes_per_s = rate;
    d->n_slow = d->bytes_per_s < d->usual_bytes_per_s / 4 ? d->n_slow + 1 : 0;
    if (d->n_slow == 0) /* what is slow never becomes usual */
        d->usual_bytes_per_s += (rate - d->usual_bytes_per_s) / USUAL_WINDOWS;
}

bool drive_is_slow(const struct drive *d)
{
    return d->n_slow >= SLOW_FOR_GOOD;
}

double drive_speed(const struct drive *d, int64_t now_ns)
{
    double speed = d->bytes_per_s, waited_s = (double)(now_ns - d->progress_ns) / 1e9;
    /* all that is in flight should have come twice over by now */
    if (d->n_flying > 0 && speed > 0 && waited_s * speed > 2 * (double)d->flying_bytes)
        speed = 2 * (double)d->flying_bytes / waited_s;
    return speed;
}

/* Unknown drives are as good as the best until they show what they are. The least share goes only to drives that have
 * nothing to do, or the slow one's reads would fill the queue. */
static double weight_of(const struct drive *d, double fastest, int64_t now_ns)
{
    if (d->bytes_per_s <= 0)
        return fastest > 0 ? fastest : 1;
    double speed = drive_speed(d, now_ns);
    return speed > slowest * fastest || d->n_flying > 0 ? speed : slowest * fastest;
}

int drives_pick(struct drive *const *drives, const bool *alive, const bool *has, int n, uint64_t n_bytes,
                int64_t now_ns)
{
    double fastest = 0, sum = 0, limit = max_credit_reads * (double)n_bytes;
    int best = -1;
    for (int i = 0; i < n; i++) {
        double speed = alive[i] ? drive_speed(drives[i], now_ns) : 0;
        fastest = speed > fastest ? speed : fastest;
    }
    for (int i = 0; i < n; i++)
        sum += alive[i] ? weight_of(drives[i], fastest, now_ns) : 0;
    for (int i = 0; i < n; i++) {
        if (!alive[i])
            continue;
        double credit = drives[i]->credit + (double)n_bytes * weight_of(drives[i], fastest, now_ns) / sum;
        drives[i]->credit = credit > limit ? limit : credit < -limit ? -limit : credit;
        if (has[i] && (best < 0 || drives[i]->credit > drives[best]->credit))
            best = i;
    }
    if (best >= 0)
        drives[best]->credit -= (double)n_bytes;
    return best;
}
