/* How families write, as tables, and the reader that follows them. */
#ifndef REPLY_REPLY_INTERNAL_H
#define REPLY_REPLY_INTERNAL_H

#include <stdint.h>

#include "reply/arguments.h"
#include "reply/reply.h"
#include "reply/reply_tools.h"

enum { REPLY_MAX_SKIP = 4, REPLY_MAX_WAYS = 6, REPLY_MAX_TRIGGERS = 5, REPLY_MAX_STATES = 13, REPLY_MAX_SHAPES = 4 };

/* How a model marks reasoning. Marks may be tokens or plain text, whole or in pieces. */
struct reply_marks {
    const char *sign; /* what its template holds */
    const char *open, *close;
    const char *skip[REPLY_MAX_SKIP]; /* marks of the rest, which nobody wants to read */
    const char *begin, *end;          /* what content may begin and end with, and is none there; NULL: nothing */
};

/* ---- families: how calls are read ------------------------------------------------------------------------------ */

/* What is done with the bytes that come, in a state. White space before marks, names and arguments is no matter. */
enum reply_action {
    READ_MARK,   /* one of the ways' texts must come */
    READ_NAME,   /* all up to one of the ways' texts is the tool's name, */
    READ_ID,     /* the call's id, */
    READ_KEY,    /* a parameter's name, */
    READ_VALUE,  /* its value, typed by the tool's schema, */
    READ_STRING, /* a value that is a string, */
    READ_OTHER,  /* or one that is JSON */
    READ_ARGS,   /* the arguments in a notation of arguments.h, with which the call ends */
    READ_CALL,   /* a JSON object with name and arguments, the whole call */
    READ_HEADER, /* a header of harmony's, up to <|message|>, which says what follows; see reply_harmony_header */
};

enum {
    WAY_KEEPS = 1,  /* the text is not taken: it belongs to the next state */
    WAY_ENDS = 2,   /* the call ends here */
    WAY_CLOSES = 4, /* this ends what is already known: a call's or all calls' end */
    WAY_NESTS = 8,  /* READ_VALUE: an element begins in the value, which the value's first way ends, too */
};

enum { TO_TEXT = 255 }; /* no state: what follows is text */

struct reply_way {
    const char *text; /* NULL: no way; "": where no other text comes */
    uint8_t to;       /* a state's number, or TO_TEXT */
    uint8_t flags;
};

struct reply_state {
    uint8_t action;
    struct reply_way ways[REPLY_MAX_WAYS];
    uint8_t notation; /* READ_ARGS: enum args_notation */
};

enum {
    TRIGGER_KEEPS = 1,        /* as WAY_KEEPS */
    TRIGGER_AT_START = 2,     /* only where the content begins */
    TRIGGER_IS_SOFT = 4,      /* common in other text, too: no note where no call follows */
    TRIGGER_IN_REASONING = 8, /* ends reasoning, too */
    TRIGGER_ALWAYS = 16,      /* also without tools */
};

struct reply_trigger {
    const char *text; /* NULL: no more */
    uint8_t to;       /* the state that follows */
    uint8_t flags;
};

/* ---- families: how calls are written --------------------------------------------------------------------------- */

/* In these texts $N stands for the tool's name, $A for the arguments, $K for a parameter's name, $S for whether it is a
 * string ("true" or "false"), $T for its type as JSON has it, $I for a number, and $R for nine letters and digits. */
struct reply_shape {
    const char *sign;            /* what the template holds; NULL: this shape is the last */
    const char *trigger;         /* how `open` or `call` begins, enough to know that it is a call */
    const char *open, *close;    /* around all calls; NULL: nothing */
    const char *call;            /* one call */
    const char *between;         /* what stands between two calls; NULL: there is one only */
    const char *parameter;       /* what stands before a parameter's value; NULL: the arguments are in `notation` */
    const char *parameter_end;   /* what stands behind it, which no string holds */
    const char *parameter_close; /* what stands behind that, with $K; NULL: nothing */
    enum args_notation notation; /* of the arguments where there is no `parameter` */
    const char *before;          /* what stands between reasoning and calls or content; NULL: white space */
    const char *content;         /* what stands before content; NULL: nothing, or marks that are skipped */
};

struct reply_family {
    const char *name;     /* the family's, for people */
    const char *signs[3]; /* one of them is in the template; NULL: no more */
    bool has_id_in_name;  /* names are functions.NAME:3, which is the id, too */
    bool has_attributes;  /* names and keys are attributes, in which & is &amp; and " is &quot; */
    struct reply_trigger triggers[REPLY_MAX_TRIGGERS]; /* where calls begin */
    struct reply_state states[REPLY_MAX_STATES];       /* how they go on; numbered by each family's file */
    struct reply_shape shapes[REPLY_MAX_SHAPES];       /* how models are to write them: the first whose sign fits */
};

/* ---- the reader ------------------------------------------------------------------------------------------------ */

/* A call while it is read. */
struct reply_call {
    const struct reply_state *state; /* the state; NULL: text is read */
    bool is_soft;                    /* the trigger is, and nothing has been called since */
    bool has_called;                 /* a call has ended since the trigger */
    struct bytes raw;                /* bytes read since the trigger, or the last call, that are not told yet */
    struct bytes name;               /* the name as it was read */
    struct bytes id;                 /* the id that the model gave the call */
    struct bytes key;                /* the parameter's name, or the key of the JSON object */
    const struct reply_tool *tool;   /* the tool, borrowed; NULL: not known yet */
    bool is_begun;                   /* REPLY_CALL was told */
    enum { NO_ARGS, IN_ARGS, HAS_ARGS } stage;
    struct args_reader args; /* reader of the arguments, or of a value that is a string */
    struct bytes json;       /* arguments that are written and not told yet */
    /* READ_VALUE and its like */
    bool is_in_value;     /* the value has begun */
    enum reply_kind kind; /* the value's kind */
    int depth;            /* elements that are open in the value */
    struct bytes value;   /* what of it must be whole before it can be written */
    /* READ_CALL */
    uint8_t at;              /* where in the object: enum envelope in reply_envelope.c */
    uint8_t field;           /* whose value it is: enum field there */
    struct args_reader skip; /* reader of values that are not arguments */
};

struct reply {
    struct reply_style style;
    const struct reply_tools *tools; /* tools that may be called, borrowed; NULL: calls are content */
    reply_fn *fn;                    /* gets what is said; may be NULL */
    void *user;
    enum reply_part part;      /* where text belongs: REPLY_CONTENT or REPLY_REASONING */
    bool is_trimming;          /* white space is not told, as a mark stood before it */
    bool has_content;          /* content was told */
    bool had_fault;            /* a call was malformed: marks that would have closed it are not text */
    struct bytes held;         /* bytes that are not read yet */
    struct bytes text;         /* text to be told at the end of this piece */
    enum reply_part text_part; /* what that text is */
    struct reply_call call;
};

/* reply_text.c: tells what is said. */
void reply_tell(struct reply *r, enum reply_part part, const char *s, size_t n);
void reply_note(struct reply *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Text goes on, after a call or a mark. */
void reply_go_on(struct reply *r, enum reply_part part);
/* How much of the held bytes from `at` on agrees with the text: 0 not, 1 all there are, 2 the whole text. */
int reply_match(const struct reply *r, size_t at, const char *text);
bool reply_is_space(char c);
/* What follows a prompt, which may be NULL. */
enum reply_part reply_part_after(struct reply_style style, const char *prompt);

/* reply_call.c */
void reply_call_begin(struct reply *r, const struct reply_trigger *t, size_t n_space);
bool reply_call_advance(struct reply *r); /* false: more bytes are needed */
void reply_call_finish(struct reply *r, bool is_cut);
void reply_call_close(struct reply_call *c);
/* Steps of a call that several actions share. False: there is no such tool, and what was read has become text. */
void reply_call_take(struct reply *r, size_t n); /* held bytes were read */
bool reply_call_know_tool(struct reply *r);
bool reply_call_start(struct reply *r);
void reply_call_commit(struct reply *r); /* what was read is told and can't become text any more */
void reply_call_end(struct reply *r);
void reply_call_follow(struct reply *r, const struct reply_way *way);
void reply_call_fail(struct reply *r, const char *expected); /* a phrase, or NULL for none */

/* reply_envelope.c: READ_CALL. */
bool reply_envelope_advance(struct reply *r);

/* family_gpt_oss.c: READ_HEADER, when the whole header is in call.raw. */
void reply_harmony_header(struct reply *r);

/* reply_style.c */
bool reply_style_has(const struct reply_style *s, const char *token, bool has_tools);

#endif
