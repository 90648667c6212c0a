/* The tokens of a vocabulary as a tree (trie) over their bytes, in one array: the subtree of a node follows the node.
 */
#ifndef GRAMMAR_VOCAB_TRIE_H
#define GRAMMAR_VOCAB_TRIE_H

#include "grammar/grammar.h"

struct trie_node {
    uint32_t token; /* the token that ends here + 1; 0: none does */
    uint32_t byte : 8;
    uint32_t size : 24; /* nodes of the subtree, including this one */
};

/* A place where tokens leave a string that has no conditions on its characters: a quotation mark within them. */
struct trie_exit {
    uint32_t node;           /* the node of the quotation mark */
    uint32_t token;          /* a token whose first n_byte bytes lead to the node */
    uint16_t n_byte, n_char; /* bytes up to and including the mark, and characters before it */
};

enum { TRIE_MAX_CHARS = 64, TRIE_MAX_DEPTH = 1024 };

struct grammar_vocab {
    int32_t n_token;
    uint32_t *offsets; /* [n_token + 1] into `bytes` */
    uint8_t *bytes;
    uint8_t *kinds; /* [n_token] grammar_token_kind */
    int32_t *ends;  /* [n_end] tokens that end texts */
    uint32_t n_end;
    int32_t *twins;          /* [n_token] the next token with the same bytes, or -1 */
    struct trie_node *nodes; /* [n_node]; the root, which has no byte, is the first */
    uint32_t n_node, depth;  /* depth: most bytes of a token */
    /* Tokens that stay within a string without conditions. free_chars[i] is the set of those that have or begin at most
     * i characters; `longs` lists those with too many characters for any set. */
    uint64_t *free_chars; /* [TRIE_MAX_CHARS][n_word] */
    uint32_t n_word;      /* words of a set of tokens */
    struct trie_long {
        uint32_t token, n_char;
    } * longs; /* [n_long] */
    uint32_t n_long;
    struct trie_exit *exits;
    uint32_t n_exit;
};

#endif
