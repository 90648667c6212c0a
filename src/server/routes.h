/* The table of routes: which function handles which method and path. */
#ifndef SERVER_ROUTES_H
#define SERVER_ROUTES_H

#include <stdbool.h>
#include <stddef.h>

struct call;
struct protocol;

struct route {
    const char *method; /* GET also matches HEAD */
    const char *path;   /* a path that ends with / matches all paths below it */
    void (*handle)(struct call *c);
    const struct protocol *protocol; /* NULL: no model answers, and errors have OpenAI's form */
    bool is_quick;                   /* the function never waits, and needs no body: it runs in HTTP's thread */
    bool needs_no_key;
};

/* Finds the route of a request; NULL: there is none. Then *allow lists the methods that the path does have; NULL: the
 * path does not exist. */
const struct route *routes_find(const char *method, const char *path, const char **allow);
/* The protocol for errors about a path that does not exist. */
const struct protocol *routes_protocol(const char *path);

/* The handlers, by file. */
void route_answer(struct call *c);       /* route_answer.c */
void route_count_tokens(struct call *c); /* route_tokens.c */
void route_tokenize(struct call *c);
void route_detokenize(struct call *c);
void route_tokenizer_info(struct call *c);
void route_apply_template(struct call *c);
void route_embeddings(struct call *c); /* route_info.c */
void route_health(struct call *c);
void route_props(struct call *c);
void route_slots(struct call *c);
void route_metrics(struct call *c);
void route_models(struct call *c); /* route_models.c */
void route_model(struct call *c);
void route_models_load(struct call *c);
void route_models_unload(struct call *c);
void route_plan(struct call *c); /* route_reports.c */
void route_receipts(struct call *c);
void route_front(struct call *c); /* route_page.c */
void route_page(struct call *c);
void route_experts(struct call *c);
void route_ollama_version(struct call *c); /* route_ollama.c */
void route_ollama_tags(struct call *c);
void route_ollama_show(struct call *c);
void route_ollama_ps(struct call *c);

#endif
