#define _POSIX_C_SOURCE 200809L
#include "cli/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include "base/output_file.h"

static volatile sig_atomic_t interrupted, ends_reads;

static void end_read_soon(int number)
{
    (void)number;
    if (ends_reads)
        alarm(1);
}

/* Ends the program as the signal would, without unfinished files. */
static void end_program(int number)
{
    output_files_remove(); /* NOLINT: handlers may call it */
    signal(number, SIG_DFL);
    raise(number);
}

static void on_interrupt(int number)
{
    interrupted = 1;
    signal(number, end_program);
    end_read_soon(number);
}

void cli_catch_ends(void)
{
    static const int numbers[] = {SIGTERM, SIGHUP};
    for (int i = 0; i < (int)(sizeof numbers / sizeof *numbers); i++)
        if (signal(numbers[i], end_program) == SIG_IGN)
            signal(numbers[i], SIG_IGN); /* as nohup has asked */
}

void cli_catch_interrupt(void)
{
    interrupted = 0;
    signal(SIGINT, on_interrupt);
}

void cli_release_interrupt(void)
{
    signal(SIGINT, end_program);
}

/* An interrupt that comes just before a read begins does not end it. The alarm behind it does, if need be the next. */
void cli_end_reads(bool on)
{
    const struct sigaction action = {.sa_handler = end_read_soon}; /* without SA_RESTART */
    ends_reads = on;
    if (on)
        sigaction(SIGALRM, &action, NULL);
    else
        alarm(0);
}

bool cli_interrupted(void)
{
    return interrupted;
}
