#include "base/temperature.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file_io.h"
#include "base/printable.h"

/* The system numbers chips from 0 and each chip's sensors from 1; folders are not listed, as that allocates. */
enum { MAX_CHIP = 32, MAX_SENSOR = 32, TEXT_BYTES = 64 };

/* What no sensor of hardware that works shows. */
static const double least_limit_c = 30, most_c = 200;

struct chip {
    const char *root;
    int number;
    char name[TEXT_BYTES];
};

/* A file of the chip: its text up to the end of the line. */
static bool read_text(const struct chip *c, const char *file, char text[TEXT_BYTES])
{
    char path[4096];
    size_t n = 0;
    if ((size_t)snprintf(path, sizeof path, "%s/sys/class/hwmon/hwmon%d/%s", c->root, c->number, file) >= sizeof path)
        return false;
    int fd = file_open(path, O_RDONLY, 0);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, text, TEXT_BYTES - 1);
    close(fd);
    while (got > 0 && n < (size_t)got && text[n] != '\n')
        n++;
    text[n] = '\0';
    return got > 0;
}

/* Thousandths of a degree, in a file called tempNUMBER_what. */
static bool read_degrees(const struct chip *c, int sensor, const char *what, double *out)
{
    char file[TEXT_BYTES], text[TEXT_BYTES], *end;
    snprintf(file, sizeof file, "temp%d_%s", sensor, what);
    if (!read_text(c, file, text))
        return false;
    *out = (double)strtol(text, &end, 10) / 1000;
    return end != text && *out < most_c;
}

static bool read_sensor(const struct chip *c, int sensor, struct temperature *out)
{
    char file[TEXT_BYTES], label[TEXT_BYTES], name[2 * TEXT_BYTES];
    if (!read_degrees(c, sensor, "input", &out->now_c) ||
        (!read_degrees(c, sensor, "crit", &out->limit_c) && !read_degrees(c, sensor, "max", &out->limit_c)) ||
        out->limit_c < least_limit_c)
        return false;
    snprintf(file, sizeof file, "temp%d_label", sensor);
    int n = snprintf(name, sizeof name, "%s", c->name);
    if (read_text(c, file, label))
        n = snprintf(name, sizeof name, "%s %s", c->name, label);
    (void)printable_line(name, (size_t)n, out->sensor, sizeof out->sensor);
    return true;
}

bool temperature_look(const char *root, struct temperature *out)
{
    struct chip c = {.root = root};
    struct temperature t;
    bool is_found = false;
    for (c.number = 0; c.number < MAX_CHIP; c.number++) {
        if (!read_text(&c, "name", c.name))
            continue;
        for (int i = 1; i <= MAX_SENSOR; i++)
            if (read_sensor(&c, i, &t) && (!is_found || t.limit_c - t.now_c < out->limit_c - out->now_c)) {
                *out = t;
                is_found = true;
            }
    }
    return is_found;
}
