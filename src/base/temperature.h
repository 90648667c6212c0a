/* How close the hardware is to the temperature at which it throttles or switches itself off. */
#ifndef BASE_TEMPERATURE_H
#define BASE_TEMPERATURE_H

#include <stdbool.h>

enum { TEMPERATURE_NAME_BYTES = 96 };

/* What a sensor says, in degrees Celsius. */
struct temperature {
    char sensor[TEMPERATURE_NAME_BYTES]; /* the chip, and the sensor's label if it has one: "coretemp Package id 0" */
    double now_c;
    double limit_c; /* the critical temperature, or else the sensor's maximum */
};

/* Finds the sensor that is closest to its limit, of all that the system shows below /sys/class/hwmon (processors,
 * drives and others). False: no sensor has a limit, as in most virtual machines. root: the path that /sys is below, ""
 * but in tests. Allocates nothing. */
bool temperature_look(const char *root, struct temperature *out);

#endif
