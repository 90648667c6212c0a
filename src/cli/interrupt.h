/* Interrupts (Ctrl-C): the first one is noted, and what goes on for long asks for it. */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <stdbool.h>

/* From now on the first interrupt (Ctrl-C) is noted, and a second one ends the program. An interrupt that was noted
 * before is forgotten. */
void cli_catch_interrupt(void);
void cli_release_interrupt(void); /* from now on an interrupt ends the program */
bool cli_interrupted(void);       /* an interrupt was noted */
/* While it is on, an interrupt ends the reads of this thread, with EINTR: also one that begins after it, within a
 * second. */
void cli_end_reads(bool on);

#endif
