#include "server/routes.h"

#include <string.h>

#include "server/protocol.h"

enum { QUICK = 1, OPEN = 2 };

#define ROUTE(m, p, f, proto, flags)                                                                                   \
    {                                                                                                                  \
        .method = m, .path = p, .handle = f, .protocol = proto, .is_quick = (flags)&QUICK,                             \
        .needs_no_key = ((flags)&OPEN) > 0                                                                             \
    }

static const struct route routes[] = {
    ROUTE("POST", "/v1/chat/completions", route_answer, &protocol_chat, 0),
    ROUTE("POST", "/v1/completions", route_answer, &protocol_completions, 0),
    ROUTE("POST", "/v1/responses", route_answer, &protocol_responses, 0),
    ROUTE("POST", "/v1/responses/input_tokens", route_count_tokens, &protocol_responses, 0),
    ROUTE("POST", "/v1/messages", route_answer, &protocol_messages, 0),
    ROUTE("POST", "/v1/messages/count_tokens", route_count_tokens, &protocol_messages, 0),
    ROUTE("POST", "/v1/embeddings", route_embeddings, NULL, 0),
    ROUTE("GET", "/v1/models", route_models, NULL, QUICK),
    ROUTE("GET", "/v1/models/", route_model, NULL, QUICK),
    ROUTE("GET", "/models", route_models, NULL, QUICK),
    ROUTE("POST", "/models/load", route_models_load, NULL, 0),
    ROUTE("POST", "/models/unload", route_models_unload, NULL, 0),
    ROUTE("GET", "/plan", route_plan, NULL, 0),
    ROUTE("GET", "/plan/", route_plan, NULL, 0),
    ROUTE("GET", "/receipts", route_receipts, NULL, 0),
    ROUTE("POST", "/api/chat", route_answer, &protocol_ollama_chat, 0),
    ROUTE("POST", "/api/generate", route_answer, &protocol_ollama_generate, 0),
    ROUTE("POST", "/api/embed", route_embeddings, &protocol_ollama_chat, 0),
    ROUTE("POST", "/api/embeddings", route_embeddings, &protocol_ollama_chat, 0),
    ROUTE("POST", "/api/show", route_ollama_show, &protocol_ollama_chat, 0),
    ROUTE("GET", "/api/tags", route_ollama_tags, &protocol_ollama_chat, QUICK),
    ROUTE("GET", "/api/ps", route_ollama_ps, &protocol_ollama_chat, QUICK),
    ROUTE("GET", "/api/version", route_ollama_version, &protocol_ollama_chat, QUICK),
    ROUTE("POST", "/completion", route_answer, &protocol_llama, 0),
    ROUTE("POST", "/infill", route_answer, &protocol_infill, 0),
    ROUTE("POST", "/tokenize", route_tokenize, NULL, 0),
    ROUTE("POST", "/detokenize", route_detokenize, NULL, 0),
    ROUTE("GET", "/tokenizer_info", route_tokenizer_info, NULL, 0),
    ROUTE("POST", "/apply-template", route_apply_template, &protocol_chat, 0),
    ROUTE("GET", "/props", route_props, NULL, QUICK),
    ROUTE("GET", "/slots", route_slots, NULL, QUICK),
    ROUTE("GET", "/metrics", route_metrics, NULL, QUICK),
    ROUTE("GET", "/health", route_health, NULL, QUICK | OPEN),
    ROUTE("GET", "/v1/health", route_health, NULL, QUICK | OPEN),
    ROUTE("GET", "/experts", route_experts, NULL, QUICK),
    ROUTE("GET", "/", route_front, NULL, QUICK | OPEN),
    ROUTE("GET", "/web/", route_page, NULL, QUICK | OPEN),
};

enum { N_ROUTE = sizeof routes / sizeof *routes };

static bool leads_to(const struct route *r, const char *path)
{
    size_t n = strlen(r->path);
    bool is_folder = n > 1 && r->path[n - 1] == '/';
    return is_folder ? !strncmp(path, r->path, n) && path[n] : !strcmp(path, r->path);
}

const struct route *routes_find(const char *method, const char *path, const char **allow)
{
    const char *wanted = strcmp(method, "HEAD") ? method : "GET";
    *allow = NULL;
    for (int i = 0; i < N_ROUTE; i++) {
        if (!leads_to(&routes[i], path))
            continue;
        if (!strcmp(routes[i].method, wanted))
            return &routes[i];
        *allow = strcmp(routes[i].method, "GET") ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
    }
    return NULL;
}

const struct protocol *routes_protocol(const char *path)
{
    if (!strncmp(path, "/v1/messages", 12))
        return &protocol_messages;
    return strncmp(path, "/api/", 5) ? &protocol_chat : &protocol_ollama_chat;
}
