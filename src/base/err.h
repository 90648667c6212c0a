/* Errors: a code from err.def and one sentence that says what went wrong, where, and what was expected.
 *
 * A fallible function returns the code and fills the caller's `struct err`. Errors are for what the outside
 * world can do to us (files, memory, the operating system, the user); our own bugs are asserts. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stddef.h>

typedef enum err_code {
#define ERR(name, number, text) ERR_##name = number,
#include "base/err.def"
#undef ERR
} err_code;

enum { ERR_TEXT_BYTES = 768 };

struct err {
    err_code code;
    char text[ERR_TEXT_BYTES]; /* one printable line (base/printable.h), a sentence; empty while code is ERR_OK */
};

#if defined(__GNUC__)
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#define MUST_USE               __attribute__((warn_unused_result))
#else
#define PRINTF_LIKE(fmt, args)
#define MUST_USE
#endif

/* Fills `e` (which may be NULL) and returns `code`, so that a failing function can `return err_set(...)`. Text from
 * files and users may be passed as it is: control characters are made visible. */
err_code err_set(struct err *e, err_code code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Converts an error of the library's interface (a moebius_error, whose status is a code) to an err; returns its code.
 */
#define err_adopt(e, from) err_set((e), (err_code)(from)->status, "%s", (from)->text)

/* Puts "PREFIX: " before the sentence already in `e`; returns e->code. */
err_code err_prefix(struct err *e, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Sets ERR_NOMEM with a sentence that says how much memory was wanted, and for what. */
err_code err_nomem(struct err *e, size_t n_bytes, const char *what);

#if defined(__clang_analyzer__)
/* clang-tidy sees one file at a time: this tells it that these functions return the code that they are given. */
#define err_set(e, code, ...)       (err_set(e, code, __VA_ARGS__), (code))
#define err_nomem(e, n_bytes, what) (err_nomem(e, n_bytes, what), ERR_NOMEM)
#endif

/* The fixed text of a code, for a person; never NULL. */
const char *err_code_text(err_code code);

/* Returns a failure to the caller. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        err_code try_code_ = (call);                                                                                   \
        if (try_code_ != ERR_OK)                                                                                       \
            return try_code_;                                                                                          \
    } while (0)

/* Goes to the function's cleanup on failure: needs a local `err_code code` and a label `out`. */
#define TRY_OUT(call)                                                                                                  \
    do {                                                                                                               \
        code = (call);                                                                                                 \
        if (code != ERR_OK)                                                                                            \
            goto out;                                                                                                  \
    } while (0)

#endif
