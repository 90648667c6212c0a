/* The tables that describe how model families write calls, and the state of the reader that follows them. */
#ifndef REPLY_REPLY_INTERNAL_H
#define REPLY_REPLY_INTERNAL_H

#include <stdint.h>

#include "reply/arguments.h"
#include "reply/reply.h"
#include "reply/reply_tools.h"

enum { REPLY_MAX_SKIP = 4, REPLY_MAX_WAYS = 6, REPLY_MAX_TRIGGERS = 5, REPLY_MAX_STATES = 13, REPLY_MAX_SHAPES = 4 };

/* How a model marks reasoning. Marks may be tokens or plain text, whole or in pieces. */
struct reply_marks {
    const char *sign;                 /* text by which a template with these marks is recognised */
    const char *open, *close;         /* what stands before and after reasoning */
    const char *skip[REPLY_MAX_SKIP]; /* marks around content, which are not reported */
    const char *begin, *end;          /* what may stand around content and does not belong to it; NULL: nothing */
};

/* ---- families: how calls are read ------------------------------------------------------------------------------ */

/* What a state does with the bytes that come. White space before marks, names and arguments is ignored. */
enum reply_action {
    READ_MARK,   /* expects one of the ways' texts */
    READ_NAME,   /* reads the tool's name, up to one of the ways' texts */
    READ_ID,     /* reads the call's id, up to one of the ways' texts */
    READ_KEY,    /* reads a parameter's name, up to one of the ways' texts */
    READ_VALUE,  /* reads a parameter's value of the type in the tool's schema, up to one of the ways' texts */
    READ_STRING, /* reads a value that is a string, up to one of the ways' texts */
    READ_OTHER,  /* reads a value that is JSON, up to one of the ways' texts */
    READ_ARGS,   /* reads the arguments in a notation of arguments.h; their end is the call's */
    READ_CALL,   /* reads a JSON object with name and arguments, which is the whole call */
    READ_HEADER, /* reads a header of the harmony format, up to <|message|>; see reply_harmony_header */
};

enum {
    WAY_KEEPS = 1,  /* the text is left for the next state to read */
    WAY_ENDS = 2,   /* the call ends here */
    WAY_CLOSES = 4, /* the text only closes what is complete already: a call or all calls */
    WAY_NESTS = 8,  /* READ_VALUE: an element begins within the value; the text of the value's first way ends it */
};

enum { TO_TEXT = 255 }; /* instead of a state's number: plain text follows */

/* A transition: the text that ends a state, and what follows it. */
struct reply_way {
    const char *text; /* NULL: the list ends here; "": taken where no other way's text comes */
    uint8_t to;       /* a state's number, or TO_TEXT */
    uint8_t flags;    /* WAY_... */
};

struct reply_state {
    uint8_t action; /* enum reply_action */
    struct reply_way ways[REPLY_MAX_WAYS];
    uint8_t notation; /* READ_ARGS: enum args_notation */
};

enum {
    TRIGGER_KEEPS = 1,        /* the text is left for the next state to read */
    TRIGGER_AT_START = 2,     /* counts only where the content begins */
    TRIGGER_IS_SOFT = 4,      /* is common in other text, too: no note is written where no call follows */
    TRIGGER_IN_REASONING = 8, /* counts in reasoning, too, and ends it */
    TRIGGER_ALWAYS = 16,      /* counts without tools, too */
};

/* A text with which calls begin. */
struct reply_trigger {
    const char *text; /* NULL: the list ends here */
    uint8_t to;       /* the number of the state that follows */
    uint8_t flags;    /* TRIGGER_... */
};

/* ---- families: how calls are written --------------------------------------------------------------------------- */

/* How a grammar makes models write calls. In these texts $N stands for the tool's name, $A for the arguments, $K for a
 * parameter's name, $S for whether the parameter is a string ("true" or "false"), $T for its JSON type, $I for a
 * number, and $R for nine letters and digits. */
struct reply_shape {
    const char *sign;            /* text by which the template is recognised; NULL: this shape is the last */
    const char *trigger;         /* the beginning of `open` or `call` that only calls have */
    const char *open, *close;    /* what stands around all calls; NULL: nothing */
    const char *call;            /* one call */
    const char *between;         /* what stands between two calls; NULL: there can be one call only */
    const char *parameter;       /* what stands before a parameter's value; NULL: the arguments are in `notation` */
    const char *parameter_end;   /* what stands after a parameter's value; strings can't contain it */
    const char *parameter_close; /* what stands after `parameter_end`, with $K; NULL: nothing */
    enum args_notation notation; /* how arguments are written where `parameter` is NULL */
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
    struct reply_shape shapes[REPLY_MAX_SHAPES];       /* how calls are written: the first whose sign fits counts */
};

/* ---- the reader ------------------------------------------------------------------------------------------------ */

/* A call that is being read. */
struct reply_call {
    const struct reply_state *state; /* NULL: no call is being read, but text */
    bool is_soft;                    /* the trigger is soft, and no call has followed it yet */
    bool has_called;                 /* a call has ended since the trigger */
    struct bytes raw;                /* bytes read since the trigger or the last call that are not reported yet */
    struct bytes name;               /* the name as it was read */
    struct bytes id;                 /* the id that the model gave the call */
    struct bytes key;                /* the parameter's name, or the key of the JSON object */
    const struct reply_tool *tool;   /* the tool, borrowed; NULL: not known yet */
    bool is_begun;                   /* REPLY_CALL was reported */
    enum { NO_ARGS, IN_ARGS, HAS_ARGS } stage;
    struct args_reader args; /* reads the arguments, or a value that is a string */
    struct bytes json;       /* arguments that are written as JSON and not reported yet */
    /* READ_VALUE, READ_STRING, READ_OTHER */
    bool is_in_value;     /* the value has begun */
    enum reply_kind kind; /* the value's kind */
    int depth;            /* number of elements that are open in the value */
    struct bytes value;   /* bytes of a value that must be whole before it can be written */
    /* READ_CALL */
    uint8_t at;              /* the place in the object: enum envelope in reply_envelope.c */
    uint8_t field;           /* the field whose value is read: enum field in reply_envelope.c */
    struct args_reader skip; /* reads values that are not arguments */
};

struct reply {
    struct reply_style style;
    const struct reply_tools *tools; /* tools that may be called, borrowed; NULL: calls are content */
    reply_fn *fn;                    /* gets the parts; may be NULL */
    void *user;
    enum reply_part part;      /* what plain text is now: REPLY_CONTENT or REPLY_REASONING */
    bool is_trimming;          /* white space is dropped, as it follows a mark */
    bool has_content;          /* content was reported */
    bool had_fault;            /* a call was malformed: marks that would have closed it are dropped */
    struct bytes held;         /* bytes that are not read yet */
    struct bytes text;         /* text to be reported at the end of this piece */
    enum reply_part text_part; /* what `text` is */
    struct reply_call call;
};

/* reply_text.c: reporting parts. */
void reply_tell(struct reply *r, enum reply_part part, const char *s, size_t n);
void reply_note(struct reply *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Goes on with plain text of this part, after a call or a mark. */
void reply_go_on(struct reply *r, enum reply_part part);
/* Compares the held bytes from `at` on with the text: 0: they differ, 1: they are a beginning of it, 2: they begin with
 * the whole text. */
int reply_match(const struct reply *r, size_t at, const char *text);
bool reply_is_space(char c);
/* What an answer to this prompt (may be NULL) begins with. */
enum reply_part reply_part_after(struct reply_style style, const char *prompt);

/* reply_call.c */
void reply_call_begin(struct reply *r, const struct reply_trigger *t, size_t n_space);
bool reply_call_advance(struct reply *r); /* false: more bytes are needed */
void reply_call_finish(struct reply *r, bool is_cut);
void reply_call_close(struct reply_call *c);
/* Steps of a call that several actions share. Those of type bool return false where there is no such tool; what was
 * read has become text then. */
void reply_call_take(struct reply *r, size_t n); /* moves n held bytes to call.raw */
bool reply_call_know_tool(struct reply *r);
bool reply_call_start(struct reply *r);
void reply_call_commit(struct reply *r); /* reports what was read, which then can't become text any more */
void reply_call_end(struct reply *r);
void reply_call_follow(struct reply *r, const struct reply_way *way);
void reply_call_fail(struct reply *r, const char *expected); /* a phrase for the note, or NULL */

/* reply_envelope.c: READ_CALL. */
bool reply_envelope_advance(struct reply *r);

/* family_gpt_oss.c: acts on READ_HEADER's header, when the whole of it is in call.raw. */
void reply_harmony_header(struct reply *r);

/* reply_style.c */
bool reply_style_has(const struct reply_style *s, const char *token, bool has_tools);

#endif
