/* Command-line options. Each command has one table, which drives parsing, checking, --help and shell completions. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum option_kind {
    OPT_FLAG,   /* bool *: set to true */
    OPT_LISTED, /* a flag with which the command also reads models that have names (hub/hub.h) */
    OPT_INT,    /* int64_t *, within [min, max] */
    OPT_INT32,  /* int *, within [min, max] */
    OPT_FLOAT,  /* float *, within [min, max] */
    OPT_SIZE,   /* int64_t *, bytes: "2300M", "16G" */
    OPT_SHARE,  /* struct option_share *: bytes, or a share in percent: "25%" */
    OPT_LIST,   /* struct option_list *: may be given several times */
    OPT_DETAIL, /* const char **: "" for --name alone, or for --name=WORD one of the words in `choices`, separated by |
                 */
    OPT_CHOICE, /* const char **: one of the words in `choices`, separated by | */
    OPT_STRING, /* const char **, as all kinds below */
    /* The kinds below name files. The sandbox lets the command reach these files (cli/confine.h). */
    OPT_INPUT,          /* a file that is read */
    OPT_INPUT_AGAIN,    /* a file that is read more than once, and may be replaced in between */
    OPT_INPUT_OLD,      /* a file that an earlier run wrote and this one reads; an output may overwrite it */
    OPT_OUTPUT,         /* a file that is written, and perhaps read; "-" becomes /dev/stdout */
    OPT_MODEL,          /* a GGUF file; all its parts are read */
    OPT_MODELS,         /* a folder of GGUF files, or links to such files, which are read */
    OPT_FOLDERS,        /* "DIR,DIR": folders that are read */
    OPT_OUTPUT_FOLDERS, /* folders that are written */
    OPT_DEVICES,        /* "cpu:4,vulkan:0"; GPUs stand for the files that their drivers open */
    OPT_GPU,            /* "auto", "none" or a number; the same files. The default is gpu_files_default */
};

/* The headings of --help, in this order. */
enum option_group {
    GROUP_COMMON, /* what most people need, and all of a small command's */
    GROUP_OUTPUT,
    GROUP_SAMPLING,
    GROUP_FORM,
    GROUP_SERVER,
    GROUP_MACHINE,
    GROUP_MEMORY,
    GROUP_CAR,
    GROUP_CHECKS,
    N_OPTION_GROUP,
};

struct option_share {
    int64_t n_bytes;
    double share; /* 0 to 1 */
};

enum { OPTION_LIST_MAX = 16 };

struct option_list {
    const char *items[OPTION_LIST_MAX];
    int n;
};

struct option {
    const char *name; /* "--threads", or with a second form after a comma: "--model,-m" */
    enum option_kind kind;
    void *out;
    const char *arg; /* the placeholder for the value in --help */
    const char *help;
    double min, max;
    const char *choices;
    size_t group; /* an enum option_group; 0, as in rows that leave it out, is GROUP_COMMON */
};

#define N_OPTIONS(table) ((int)(sizeof(table) / sizeof *(table)))

/* What a command does with models that have names (hub/hub.h). */
enum hub_use {
    HUB_NONE,    /* only finds the files of models that are named */
    HUB_READS,   /* lists them */
    HUB_REMOVES, /* removes them */
    HUB_FETCHES, /* gets them over the network */
    HUB_NAMES,   /* gives them names */
};

/* The headings of `moebius help`, in this order. */
enum command_group { COMMAND_RUN, COMMAND_MODELS, COMMAND_LOOK, COMMAND_MAKE, COMMAND_MEASURE, N_COMMAND_GROUP };

/* A first word after a command, with which the command takes only these options. word "": no first word. */
struct subcommand {
    const char *word;
    const char *takes[3];
};

struct command {
    const char *name;
    const char *usage;                /* after "moebius NAME" */
    const char *summary;              /* one line */
    const char *details;              /* paragraphs for --help; may be NULL */
    int max_operand;                  /* how many words there may be that are neither options nor the model */
    const char *hint;                 /* what to do instead of giving more of them */
    struct subcommand subcommands[4]; /* those that take only some of the options */
    enum option_kind operands[2];     /* the kinds of the first two of these words; 0: the word names no file */
    bool keeps_files;  /* reads files that are kept from run to run, and reads drives as the engine does */
    bool runs_model;   /* reads experts through io_uring, and writes files that are kept from run to run */
    bool serves;       /* accepts connections on a socket that it opens before it enters the sandbox */
    bool fetches_none; /* also describes models that are not on this machine: they are not fetched for it */
    enum hub_use hub;
    enum command_group group;
    int (*run)(const struct command *c, int argc, char **argv); /* returns the exit code */
};

/* Parses argv[1..*argc). Options fill their `out`. The other words are moved to argv[1..], and *argc becomes one more
 * than their number. "--" ends the options. A value may be the next word, or follow as in --name=value, -n=5 and, for
 * numbers, -n5. If the table has --model, the model may also be the first word. If it has --file, the word "-" means
 * `--file -`. After --help or --version has printed something, the result is ERR_CANCELLED without a message. */
MUST_USE err_code options_parse(const struct command *c, const struct option *options, int n_option, int *argc,
                                char **argv, struct err *e);

/* Whether an option takes no value. */
bool option_is_flag(const struct option *o);

/* The first name of an option, and its second form; n_other 0: it has none. Borrowed. */
struct option_names {
    const char *name, *other;
    int n_name, n_other; /* bytes */
};
struct option_names option_names(const struct option *o);

/* Finds the option with the name `word` (n bytes), in either form; NULL: there is none. */
const struct option *options_find(const struct option *options, int n_option, const char *word, size_t n);
/* Sets an option from a text, which must stay valid. word: the option's name in messages. */
MUST_USE err_code options_set(const struct option *o, const char *word, const char *value, struct err *e);

/* Returns the exit code of a command. If it failed, prints the error in the way of all commands. */
int cli_exit(const struct command *c, err_code code, const struct err *e);

#endif
