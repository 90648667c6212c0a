/* What an answer says: reasoning, content, and calls of tools, read from its text as it comes.
 *
 * A state machine over bytes: pieces of any size give the same. It knows no model and no tokens; special tokens come as
 * their texts. How calls are written is the matter of families (family_NAME.c, one line each in family_list.def), which
 * are tables that one reader follows (reply_call.c). Which family a model belongs to is seen in its chat template.
 *
 * Nothing that the model says is lost, or said twice, and nothing is an error. What begins like a call and is none, or
 * calls a tool that there isn't, is text, with a note that says so. A call that turns out malformed within its
 * arguments is ended there: the JSON is closed so that it can be parsed, a note says so, and what follows is content.
 * The same for a call that the model's own end of the answer cuts short; what then was not yet a part of the arguments
 * (half a key, half an escape) is left out of them. Where the answer was cut, a call that is open stays open: its
 * arguments are no whole JSON, so that nobody runs half a call. */
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
    REPLY_CALL_END,  /* it has ended; the text is the id that the model gave it, or empty */
    REPLY_NOTE,      /* a sentence about something malformed */
    /* What was read as a mark, as white space beside one, or as a call. With content and reasoning these are all bytes
     * of the answer, once and in order. */
    REPLY_SYNTAX,
};

typedef void reply_fn(void *user, enum reply_part part, const char *text, size_t n);

struct reply;
struct reply_tools; /* reply_tools.h */

/* How a model writes: by its template's source. */
struct reply_style {
    const struct reply_family *family; /* of calls */
    const struct reply_shape *shape;   /* how it is asked to write them */
    const struct reply_marks *marks;   /* of reasoning */
    bool has_reasoning;                /* the template shows that the model reasons; else the marks are a guess */
};

struct reply_style reply_style_of(const char *source);
const char *reply_style_name(const struct reply_style *s); /* the family's */

/* The prompt's end may have begun the reasoning. `fn` gets what is said; text that may yet become a mark is held back.
 */
MUST_USE err_code reply_open(struct reply **out, struct reply_style style, const char *prompt, reply_fn *fn, void *user,
                             struct err *e);
void reply_close(struct reply **r);
/* From now on calls of these tools are read as calls, and not as content. Borrowed. Before the first piece. */
void reply_set_tools(struct reply *r, const struct reply_tools *tools);
/* Fails for lack of memory alone. */
MUST_USE err_code reply_feed(struct reply *r, const char *s, size_t n, struct err *e);
/* No more comes: what was held back is told, and a call that is open ends, unless the answer was cut. */
MUST_USE err_code reply_finish(struct reply *r, bool is_cut, struct err *e);
/* Whether what comes next is reasoning. *mark (may be NULL): the text that ends it, borrowed. */
bool reply_is_reasoning(const struct reply *r, const char **mark);
/* Whether this piece would begin, or go on with, a mark between reasoning and content. */
bool reply_is_mark(const struct reply *r, const char *s, size_t n);
/* Whether a special token of this text is for reply_feed; others say nothing. */
bool reply_reads(const struct reply *r, const char *token, size_t n);

struct reply_grammar_options {
    const char *name;   /* the one tool that may be called; NULL: any */
    bool is_required;   /* from the beginning of the answer, with the reasoning before; else from the trigger on */
    const char *schema; /* where no call is required: the answer is calls, or JSON of this schema, and the grammar is of
                           all of it, as with is_required; NULL: anything */
    bool is_single;     /* one call; else as many as the family lets follow each other */
    const char *prompt; /* whose end may have begun the reasoning; NULL: it has not */
    /* Finds the first text of a special token within s: where it begins and how long it is; false: there is none. Such
     * texts become %token. NULL: no token is special. */
    bool (*find_special)(void *user, const char *s, size_t n, size_t *at, size_t *length);
    void *user;
};

/* The grammar, in GBNF with %json{SCHEMA}, of what the model writes when it calls tools. *trigger: the text with which
 * it begins where it is not of the whole answer, borrowed. *text is owned by the caller (mem_free). ERR_LIMIT: it would
 * be longer than grammars may be. */
MUST_USE err_code reply_call_grammar(struct reply_style style, const struct reply_tools *tools,
                                     const struct reply_grammar_options *options, char **text, const char **trigger,
                                     struct err *e);

#endif
