/* The tokens of a vocabulary as a tree over their bytes, in one array: a node's subtree follows it. */
#ifndef GRAMMAR_VOCAB_TRIE_H
#define GRAMMAR_VOCAB_TRIE_H

#include "grammar/grammar.h"

struct trie_node {
    uint32_t token; /* + 1; 0: none ends here */
    uint32_t byte : 8;
    uint32_t size : 24; /* nodes of the subtree, this one among them */
};

/* Where tokens leave a string that has no conditions on its characters: at a quotation mark. */
struct trie_exit {
    uint32_t node;           /* of the mark */
    uint32_t token;          /* one whose first n_byte bytes lead there */
    uint16_t n_byte, n_char; /* with the mark; characters before it */
};

enum { TRIE_MAX_CHARS = 64, TRIE_MAX_DEPTH = 1024 };

struct grammar_vocab {
    int32_t n_token;
    uint32_t *offsets; /* [n_token + 1] into `bytes` */
    uint8_t *bytes;
    uint8_t *kinds; /* [n_token] grammar_token_kind */
    int32_t *ends;  /* [n_end] the tokens that end texts */
    uint32_t n_end;
    int32_t *twins;          /* [n_token] the next token of the same bytes, or -1 */
    struct trie_node *nodes; /* [n_node]; the root, which has no byte, is the first */
    uint32_t n_node, depth;  /* depth: the most bytes of a token */
    /* Tokens that stay within a string without conditions: sets of those that have or begin at most i characters, and a
     * list of those that have too many for any set. */
    uint64_t *free_chars; /* [TRIE_MAX_CHARS][n_word] */
    uint32_t n_word;
    struct trie_long {
        uint32_t token, n_char;
    } * longs; /* [n_long] */
    uint32_t n_long;
    struct trie_exit *exits;
    uint32_t n_exit;
};

#endif
