/* PCIe: links of GPUs and NVMe drives that are narrower or slower than the devices, and GPUs without a driver. */
#include <stdlib.h>
#include <string.h>

#include "jobs/doctor_internal.h"

#define DEVICES "/sys/bus/pci/devices"

bool doctor_read_link(const struct doctor *d, const char *folder, struct doctor_link *out)
{
    enum { NO_WIDTH = 255 };
    *out = (struct doctor_link){0};
    bool is_there = doctor_number(d, &out->speed, "%s/current_link_speed", folder) &&
                    doctor_number(d, &out->max_speed, "%s/max_link_speed", folder) &&
                    doctor_number(d, &out->width, "%s/current_link_width", folder) &&
                    doctor_number(d, &out->max_width, "%s/max_link_width", folder);
    (void)doctor_number(d, &out->slot_max_speed, "%s/../max_link_speed", folder);
    (void)doctor_number(d, &out->slot_width, "%s/../max_link_width", folder);
    return is_there && out->speed > 0 && out->width > 0 && out->width < NO_WIDTH;
}

double doctor_link_bytes_per_s(const struct doctor_link *l)
{
    static const double third_generation = 8; /* before it 10 bits are sent for a byte, since then 130 for 16 bytes */
    double bits = l->speed < third_generation ? 10 : 8 * 130.0 / 128;
    return l->speed * 1e9 / bits * l->width;
}

static void say_width(struct doctor *d, const char *what, const char *name, const struct doctor_link *l)
{
    if (l->slot_width > 0 && l->slot_width < l->max_width)
        doctor_say(
            d->report, DOCTOR_FINDING, "PCIe link",
            "move it to a slot with all lanes; in the BIOS, look whether another slot or M.2 drive takes half of "
            "this one's (bifurcation)",
            "%s %s: its slot has %.0f of the %.0f lanes that it could use", what, name, l->slot_width, l->max_width);
    else
        doctor_say(d->report, DOCTOR_FINDING, "PCIe link",
                   "seat the card again, without a riser cable; in the BIOS, give its slot all lanes (PCIe bifurcation "
                   "x16, not x8/x8 or x4x4x4x4)",
                   "%s %s: runs with %.0f of %.0f lanes", what, name, l->width, l->max_width);
}

/* GPUs slow their links down when they rest. */
static void say_speed(struct doctor *d, bool is_gpu, const char *what, const char *name, const struct doctor_link *l)
{
    bool slot_is_slow = l->slot_max_speed > 0 && l->slot_max_speed <= l->speed;
    if (slot_is_slow)
        doctor_say(d->report, DOCTOR_FINDING, "PCIe link",
                   "move it to a slot of a newer generation, one of the processor's own; in the BIOS, set the slot's "
                   "speed to Auto or its highest generation",
                   "%s %s: its slot runs at %.1f of the %.1f GT/s that it could use", what, name, l->speed,
                   l->max_speed);
    else if (is_gpu)
        doctor_say(d->report, DOCTOR_UNKNOWN, "PCIe link", "look again while a model runs on it",
                   "%s %s: at %.1f of %.1f GT/s, as is usual for idle GPUs", what, name, l->speed, l->max_speed);
    else
        doctor_say(d->report, DOCTOR_FINDING, "PCIe link",
                   "in the BIOS, set the slot's PCIe speed to its generation rather than Auto; seat it again; replace "
                   "the riser or adapter",
                   "%s %s: runs at %.1f of %.1f GT/s", what, name, l->speed, l->max_speed);
}

static void look_at_link(struct doctor *d, bool is_gpu, const char *name)
{
    const char *what = is_gpu ? "GPU" : "NVMe drive";
    char folder[300];
    struct doctor_link l;
    snprintf(folder, sizeof folder, DEVICES "/%s", name);
    if (!doctor_read_link(d, folder, &l)) {
        doctor_say(d->report, DOCTOR_UNKNOWN, "PCIe link", NULL, "%s %s: the system does not show its link", what,
                   name);
        return;
    }
    if (l.width < l.max_width)
        say_width(d, what, name, &l);
    if (l.speed < l.max_speed)
        say_speed(d, is_gpu, what, name, &l);
    if (l.width >= l.max_width && l.speed >= l.max_speed)
        doctor_say(d->report, DOCTOR_OK, "PCIe link", NULL, "%s %s: all %.0f lanes at %.1f GT/s", what, name, l.width,
                   l.speed);
}

/* ---- GPUs' drivers ------------------------------------------------------------------------------------------------
 */

enum { CLASS_NVME = 0x0108, CLASS_DISPLAY = 0x03, NVIDIA = 0x10de, AMD = 0x1002, INTEL = 0x8086 };

static long read_hex(const struct doctor *d, const char *name, const char *file)
{
    char text[32];
    return doctor_read(d, text, sizeof text, DEVICES "/%s/%s", name, file) ? strtol(text, NULL, 16) : 0;
}

/* Whether Vulkan lists a GPU that is one, not a driver that computes on the processor. */
static bool has_vulkan(const struct doctor *d)
{
    for (int i = 0; i < d->live->n_gpu; i++)
        if (strcmp(d->live->gpus[i].kind, "software") != 0)
            return true;
    return false;
}

static const char *driver_remedy(long vendor)
{
    return vendor == NVIDIA
               ? "install NVIDIA's driver with its Vulkan part; in a container: --gpus all with "
                 "NVIDIA_DRIVER_CAPABILITIES=all; then moebius devices"
               : "install Mesa's Vulkan drivers (mesa-vulkan-drivers) and join the groups video and render; in a "
                 "container: --device /dev/dri; then moebius devices";
}

/* Other vendors' are for screens of servers. */
static void look_at_gpu(struct doctor *d, const char *name)
{
    long vendor = read_hex(d, name, "vendor");
    if (vendor != NVIDIA && vendor != AMD && vendor != INTEL)
        return;
    if (vendor != INTEL) /* those are of the processor mostly, and have no link */
        look_at_link(d, true, name);
    if (!has_vulkan(d))
        doctor_say(d->report, DOCTOR_FINDING, "GPU driver", driver_remedy(vendor),
                   "GPU %s has no Vulkan driver that this program sees%s%s", name, d->live->no_gpu ? ": " : "",
                   d->live->no_gpu ? d->live->no_gpu : "");
}

static void look_at_pci(struct doctor *d, const char *name)
{
    long class = read_hex(d, name, "class");
    if (class >> 8 == CLASS_NVME)
        look_at_link(d, false, name);
    else if (class >> 16 == CLASS_DISPLAY)
        look_at_gpu(d, name);
}

static void look_at_vulkan(struct doctor *d)
{
    bool has_any = false;
    for (int i = 0; i < d->live->n_gpu; i++) {
        const moebius_gpu *g = &d->live->gpus[i];
        bool is_software = !strcmp(g->kind, "software");
        has_any = has_any || !is_software;
        if (!g->is_usable && !is_software)
            doctor_say(d->report, DOCTOR_FINDING, "GPU driver", "update the driver; moebius devices says what it is",
                       "vulkan:%d, %s, is not usable: %s", i, g->name, g->why_not);
        else if (!is_software)
            doctor_say(d->report, DOCTOR_OK, "GPU driver", NULL, "vulkan:%d, %s, is usable", i, g->name);
    }
    if (!has_any)
        doctor_say(d->report, DOCTOR_OK, "GPU driver", NULL, "no GPU is visible to Vulkan");
}

void doctor_links(struct doctor *d)
{
    int n_before = d->report->n_line;
    if (!doctor_each_name(d, DEVICES, look_at_pci))
        doctor_say(d->report, DOCTOR_UNKNOWN, "PCIe link", NULL, "the system does not show its PCI devices");
    else if (d->report->n_line == n_before)
        doctor_say(d->report, DOCTOR_UNKNOWN, "PCIe link", NULL, "no GPU and no NVMe drive is visible");
    look_at_vulkan(d);
}
