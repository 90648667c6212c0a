/* How near the hardware is to the temperature at which it throttles or switches itself off. */
#ifndef BASE_TEMPERATURE_H
#define BASE_TEMPERATURE_H

#include <stdbool.h>

enum { TEMPERATURE_NAME_BYTES = 96 };

/* Of a sensor, in degrees Celsius. */
struct temperature {
    char sensor[TEMPERATURE_NAME_BYTES]; /* "coretemp Package id 0": its chip, and what it calls itself if it does */
    double now_c;
    double limit_c; /* critical, else the highest that it names */
};

/* The sensor that is nearest to its limit, of processors, drives and whatever the system shows below
 * /sys/class/hwmon. False: there is none that names a limit, as in most virtual machines. root: "" (tests have a tree
 * of their own). Allocates nothing. */
bool temperature_look(const char *root, struct temperature *out);

#endif
