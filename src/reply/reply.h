/* Splits an answer, as it arrives, into reasoning, content and tool calls.
 *
 * The reader is a state machine over bytes: how the text is cut into pieces makes no difference. It knows no model and
 * no tokens; special tokens arrive as their texts. Models write calls in the way of their family. A family is a table
 * (family_NAME.c, one line each in family_list.def) that one reader follows (reply_call.c); a model's family is
 * recognised by its chat template.
 *
 * No byte of the answer is lost or reported twice, and no text is an error. Text that begins like a call but is none,
 * or that calls a tool which does not exist, is content, and a note says so. A call that turns out to be malformed
 * within its arguments ends there: its JSON is closed so that it can be parsed, a note says so, and what follows is
 * content. The same holds for a call that is still open when the model ends its answer; an unfinished part of its
 * arguments (half a key, half an escape) is dropped. Where the answer was cut off instead, by a limit, an open call
 * stays open: its arguments are incomplete JSON, so that nobody executes half a call. */
#ifndef REPLY_REPLY_H
#define REPLY_REPLY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

enum reply_part {
    REPLY_CONTENT,
    REPLY_REASONING,
    REPLY_CALL,      /* a call begins; the text is the tool's name */
    REPLY_ARGUMENTS, /* a piece of its arguments, a JSON object */
    REPLY_CALL_END,  /* a call ends; the text is the id that the model gave it, or empty */
    REPLY_NOTE,      /* a sentence about something malformed */
    /* Bytes that were read as a mark, as white space beside one, or as a call. Together with content and reasoning
     * they are the whole answer, each byte once and in order. */
    REPLY_SYNTAX,
};

typedef void reply_fn(void *user, enum reply_part part, const char *text, size_t n);

struct reply;
struct reply_tools; /* reply_tools.h */

/* How a model marks reasoning and writes calls, recognised by the source of its template. */
struct reply_style {
    const struct reply_family *family; /* how calls are read */
    const struct reply_shape *shape;   /* how a grammar makes the model write calls */
    const struct reply_marks *marks;   /* what encloses reasoning */
    bool has_reasoning;                /* the template shows that the model reasons; else the marks are a guess */
};

struct reply_style reply_style_of(const char *source);
const char *reply_style_name(const struct reply_style *s); /* the family's name */

/* `prompt` (may be NULL) is looked at for whether its end has begun the reasoning already. `fn` gets the parts; text
 * that may yet become a mark is held back. */
MUST_USE err_code reply_open(struct reply **out, struct reply_style style, const char *prompt, reply_fn *fn, void *user,
                             struct err *e);
void reply_close(struct reply **r);
/* Makes calls of these tools be read as calls; without it all calls are content. To be called before the first piece.
 * `tools` is borrowed. */
void reply_set_tools(struct reply *r, const struct reply_tools *tools);
/* Reads a piece of the answer. The only error is ERR_NOMEM. */
MUST_USE err_code reply_feed(struct reply *r, const char *s, size_t n, struct err *e);
/* Ends the answer: reports what was held back, and ends an open call unless the answer was cut off (is_cut). */
MUST_USE err_code reply_finish(struct reply *r, bool is_cut, struct err *e);
/* Whether the next text is reasoning. *mark (may be NULL) is set to the text that ends reasoning, borrowed. */
bool reply_is_reasoning(const struct reply *r, const char **mark);
/* Whether this piece would begin or continue a mark between reasoning and content. */
bool reply_is_mark(const struct reply *r, const char *s, size_t n);
/* Whether the text that is held back and this piece are the beginning of a call, or with *is_whole the whole mark with
 * which one begins. For pieces that would otherwise end the answer: false once a call has come. */
bool reply_begins_call(const struct reply *r, const char *s, size_t n, bool *is_whole);
/* The text that is held back was to become a call that did not come: it is none of the content. */
void reply_drop_held(struct reply *r);
/* Whether a special token of this text should be passed to reply_feed; others carry no meaning for the reader. */
bool reply_reads(const struct reply *r, const char *token, size_t n);

struct reply_grammar_options {
    const char *name;   /* the only tool that may be called; NULL: any */
    bool is_required;   /* a call is required: the grammar describes the whole answer, reasoning included; else it
                           applies from the trigger on */
    const char *schema; /* where no call is required: the answer is calls or JSON of this schema, and the grammar
                           describes the whole answer; NULL: it may be anything */
    bool is_single;     /* at most one call; else as many as the family can write in a row */
    const char *prompt; /* looked at for whether its end has begun the reasoning; NULL: it has not */
    /* Finds the first text of a special token within s: where it begins and how long it is; false: there is none. The
     * grammar names such texts with %token. NULL: no token is special. */
    bool (*find_special)(void *user, const char *s, size_t n, size_t *at, size_t *length);
    void *user;
};

/* Writes a grammar, in GBNF with %json{SCHEMA}, for what the model writes when it calls tools. *text is owned by the
 * caller (mem_free). *trigger is the text at which the grammar takes effect where it does not describe the whole
 * answer; borrowed. ERR_LIMIT: the grammar would be longer than grammars may be. */
MUST_USE err_code reply_call_grammar(struct reply_style style, const struct reply_tools *tools,
                                     const struct reply_grammar_options *options, char **text, const char **trigger,
                                     struct err *e);

#endif
