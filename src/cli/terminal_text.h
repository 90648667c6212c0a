/* An answer on a terminal: broken at words, not at the edge, its markdown shown as style, and below it a line of
 * status. Without markdown, a style and a status no escape sequence is written.
 *
 * Text comes in pieces as small as characters; a word is written when it has ended. What is known of markdown:
 * headings, lists, quotes, rules, fenced code (which is not broken at words), **bold**, *italic* and `code`; other
 * text, such as tables and links, stays as it stands. The characters must be printable already: escape sequences are
 * the module's own. One thread at a time. */
#ifndef CLI_TERMINAL_TEXT_H
#define CLI_TERMINAL_TEXT_H

#include <stdbool.h>
#include <stdio.h>

enum { TERMINAL_WORD_BYTES = 512, TERMINAL_START_BYTES = 16 };

struct terminal_text {
    FILE *out;                      /* borrowed */
    int width;                      /* columns that may be written to: one less than the terminal has */
    const char *base;               /* the style of all text, an escape sequence or "" */
    bool has_markdown;              /* whether it is looked for */
    int column, indent;             /* where the next character goes, and where the lines go on */
    int n_space;                    /* before the next word */
    char word[TERMINAL_WORD_BYTES]; /* what has come of a word, with its style */
    int n_word, word_columns;
    char start[TERMINAL_START_BYTES]; /* of a line, as long as it may be a mark */
    int n_start;
    bool at_start;
    char mark; /* a run of * _ or `, and how many */
    int n_mark;
    char before; /* the character before that run; ' ': none */
    bool is_bold, is_italic, is_code, is_heading, is_quote, in_fence, in_info /* the rest of the line that opens one */;
    bool has_status; /* there is a line below */
};

/* Columns of the terminal; 80 where it doesn't tell. */
int terminal_text_columns(FILE *out);

void terminal_text_open(struct terminal_text *t, FILE *out, int n_columns);
/* Begins a part in a style of its own ("": none), on a new line if another one was written. */
void terminal_text_part(struct terminal_text *t, const char *base, bool has_markdown);
/* One character, printable or a newline or tab. */
void terminal_text_put(struct terminal_text *t, const char *character);
/* Writes what was held back, and puts the style back; the line goes on. */
void terminal_text_end(struct terminal_text *t);
/* Shows a line below the text, or takes it away (NULL). */
void terminal_text_status(struct terminal_text *t, const char *status);

#endif
