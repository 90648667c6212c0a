/* Interrupts (Ctrl-C): the first one sets a flag, which long work polls. What ends the program, a second interrupt or
 * another signal, removes unfinished files first. */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <stdbool.h>

/* From now on SIGTERM and SIGHUP remove unfinished files, unless they are ignored. */
void cli_catch_ends(void);
/* From now on the first interrupt sets the flag, and a second one ends the program. Clears the flag. */
void cli_catch_interrupt(void);
void cli_release_interrupt(void); /* from now on an interrupt ends the program */
bool cli_interrupted(void);       /* whether the flag is set */
/* While this is on, an interrupt makes reads of the calling thread fail with EINTR. That includes a read that begins up
 * to a second after the interrupt. */
void cli_end_reads(bool on);

#endif
