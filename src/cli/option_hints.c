#include "cli/option_hints.h"

#include <stdio.h>
#include <string.h>

#include "base/near.h"

struct foreign {
    const char *names;   /* other programs' names, separated by commas */
    const char *ours;    /* our option, maybe followed by a comma or a space and more text, or a sentence */
    const char *command; /* the only command that this applies to; NULL: all */
};

static const struct foreign options_elsewhere[] = {
    {",-c,--ctx-size,--num-ctx,--context-size,--context,", "--ctx"},
    {",-n,--predict,--n-predict,--num-predict,--max-tokens,", "-n"},
    {",--temperature,", "--temp"},
    {",-ub,--ubatch-size,--batch-size,", "--batch"},
    {",-tb,--threads-batch,--num-thread,", "--threads"},
    {",-ctk,-ctv,--cache-type-k,--cache-type-v,", "--kv"},
    {",-ncmoe,", "--n-cpu-moe, whose N counts the last layers, not the first"},
    {",-cmoe,--cpu-moe,", "--n-cpu-moe with the number of layers"},
    {",-ot,--override-tensor,", "--n-cpu-moe, which keeps the experts of the last N layers in memory"},
    {",-np,--parallel,", "--texts"},
    {",-sys,--system-prompt,", "--system"},
    {",--draft-max,--draft-n,--spec-draft-n-max,--spec-type,", "--draft"},
    {",-r,--reverse-prompt,", "--stop"},
    {",--chat-template-file,", "--template"},
    {",--chat-template,", "--template, which takes a file with a Jinja template"},
    {",--chat-template-kwargs,--think,--reasoning-budget,-rea,", "--var, such as --var enable_thinking=false"},
    {",-dev,--device,--main-gpu,-mg,", "--devices"},
    {",-ts,--tensor-split,-sm,--split-mode,", "--split"},
    {",--repeat_penalty,", "--repeat-penalty"},
    {",--typical_p,", "--typical-p"},
    {",--xtc_probability,", "--xtc-probability"},
    {",--prompt-cache,--session,", "--save-state"},
    {",--keepalive,--keep-alive,", "--idle"},
    {",--format,", "--json-schema"},
    {",-cnv,--conversation,-i,--interactive,--interactive-first,", "`moebius chat` is a conversation"},
    {",-ngl,--gpu-layers,--n-gpu-layers,",
     "the GPU gets what fits by itself; --gpu none for none, --n-cpu-moe N keeps experts in memory"},
    {",-fa,--flash-attn,", "attention needs no such choice here: leave it out"},
    {",-mmap,--mmap,--no-mmap,--mlock,", "weights are read into memory of our own, and --ram bounds it: leave it out"},
    {",--models-dir,", "--models"},
    {",--mmproj,-mm,--image,--audio,", "models are run with text alone here"},
    {",--jinja,", "chat templates always run: leave it out"},
    {",-e,--escape,", "escapes in a text are not expanded: -p $'...' or -f FILE has line breaks"},
    {",-no-cnv,--no-conversation,", "`moebius generate` goes on with a text, without a conversation"},
    {",-st,--single-turn,", "`moebius generate --chat -p TEXT` answers one message"},
    {",-p,--prompt,-f,--file,", "`moebius generate --chat`, with -p TEXT or -f FILE, answers one message", "chat"},
    {",-hf,-hfr,--hf-repo,", "a model of the Hub is named in place of its file: -m hf:OWNER/REPO:Q4_K_M"},
    {",-mu,--model-url,", "-m"},
    {",-md,--model-draft,", "--draft, which guesses by what texts repeat and by the model's own MTP layers"},
    {",--lora,--lora-scaled,", "adapters are not applied here: expected a model that they are merged into"},
    {",--samplers,--sampler-seq,", "samplers apply in one order, which `man moebius` has: leave it out"},
    {",--rope-scaling,--rope-scale,--yarn-orig-ctx,--yarn-ext-factor,",
     "--yarn X, which extends the trained context X times"},
    {",--rope-freq-base,--rope-freq-scale,", "--override-kv, such as --override-kv ARCH.rope.freq_base=1000000"},
    {",--no-warmup,--warmup,", "nothing is computed before the first text: leave it out"},
    {",-cb,--cont-batching,", "texts always share passes (continuous batching): leave it out"},
    {",--metrics,--slots,", "the server always has them, at /metrics and /slots: leave it out", "serve"},
    {",--no-webui,", "--no-page"},
    {",-a,", "--alias"},
    {",--temp,--top-k,--top-p,--min-p,--seed,", "each request says it", "serve"},
    {",-lv,--verbosity,--log-verbosity,", "there are no levels; --stats and --quiet say more or less"},
    {",--allow-requantize,", "only F32, F16, BF16 and Q8_0 weights are quantised", "quantize"},
    {",--output-tensor-type,--token-embedding-type,--tensor-type,", "--rule, such as --rule 'output.weight=Q8_0'"},
    {",--no-display-prompt,", "the prompt is shown with --echo alone: leave it out"},
    {",--rpc,", "docs/machines.md tells how several machines compute together, with mpirun"},
    {",--verbose,--log-verbose,--timings,", "--stats"},
    {",--log-disable,--nowarn,", "--quiet"},
};

static const struct foreign commands_elsewhere[] = {
    {",run,cli,llama-cli,main,repl,talk,", "chat"},
    {",completion,complete,infer,llama-completion,simple,", "generate"},
    {",server,llama-server,start,api,", "serve"},
    {",show,info,gguf-dump,llama-gguf,", "inspect"},
    {",create,convert,llama-quantize,", "quantize"},
    {",perplexity,llama-perplexity,eval,", "ppl"},
    {",llama-bench,benchmark,", "bench"},
    {",llama-imatrix,", "imatrix"},
    {",llama-tokenize,", "tokenize"},
};

#define N_FOREIGN(list) (sizeof(list) / sizeof *(list))

/* The hint for a name of another program, in one of our commands; NULL: there is none. */
static const char *find_foreign(const struct foreign *list, size_t n_list, const char *command, const char *name,
                                size_t n)
{
    char between[64];
    if ((size_t)snprintf(between, sizeof between, ",%.*s,", (int)n, name) >= sizeof between)
        return NULL;
    for (size_t i = 0; i < n_list; i++)
        if (strstr(list[i].names, between) && (!list[i].command || !strcmp(list[i].command, command)))
            return list[i].ours;
    return NULL;
}

const char *hint_command(const char *name)
{
    return find_foreign(commands_elsewhere, N_FOREIGN(commands_elsewhere), "", name, strlen(name));
}

/* The form of an option's name that begins with a word or is most similar to it; NULL: none is similar. */
static const struct option *find_near(const struct option *options, int n_option, const char *word)
{
    const struct option *near = NULL;
    for (int least = near_limit(strlen(word + strspn(word, "-"))), i = 0; i < n_option && strlen(word) > 3; i++) {
        char name[64];
        struct option_names names = option_names(&options[i]);
        snprintf(name, sizeof name, "%.*s", names.n_name, names.name);
        int d = strncmp(name, word, strlen(word)) ? near_distance(name, word) : 0;
        if (d < least) {
            near = &options[i];
            least = d;
        }
    }
    return near;
}

err_code hint_no_option(const struct command *c, const struct option *options, int n_option, const char *word, size_t n,
                        struct err *e)
{
    char name[64], ours[64];
    const char *foreign = find_foreign(options_elsewhere, N_FOREIGN(options_elsewhere), c->name, word, n);
    if (foreign && foreign[0] == '-') {
        if (options_find(options, n_option, foreign, strcspn(foreign, ", ")))
            return err_set(e, ERR_USAGE, "there is no option %.*s: here it is %s", (int)n, word, foreign);
        foreign = NULL;
    }
    if (foreign)
        return err_set(e, ERR_USAGE, "there is no option %.*s: %s", (int)n, word, foreign);
    snprintf(name, sizeof name, "%.*s", (int)n, word);
    for (char *p = name + strspn(name, "-"); *p; p++)
        *p = *p == '_' ? '-' : *p;
    const struct option *near = find_near(options, n_option, name);
    if (!near)
        return err_set(e, ERR_USAGE, "there is no option %.*s for %s", (int)n, word, c->name);
    struct option_names names = option_names(near);
    snprintf(ours, sizeof ours, "%.*s", names.n_name, names.name);
    return err_set(e, ERR_USAGE, "there is no option %.*s: did you mean %s?", (int)n, word, ours);
}
