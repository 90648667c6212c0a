#include "cli/option_hints.h"

#include <stdio.h>
#include <string.h>

#include "base/near.h"

struct foreign {
    const char *names; /* between commas */
    const char *ours;  /* an option, or a sentence */
};

static const struct foreign options_elsewhere[] = {
    {",-c,--ctx-size,--num-ctx,--context-size,--context,", "--ctx"},
    {",-n,--predict,--n-predict,--num-predict,--max-tokens,", "-n"},
    {",--temperature,", "--temp"},
    {",-ub,--ubatch-size,--batch-size,", "--batch"},
    {",-tb,--threads-batch,--num-thread,", "--threads"},
    {",-ctk,-ctv,--cache-type-k,--cache-type-v,", "--kv"},
    {",-ncmoe,--n-cpu-moe,-cmoe,--cpu-moe,-ot,--override-tensor,", "--expert-ram"},
    {",-np,--parallel,", "--texts"},
    {",-sys,--system-prompt,", "--system"},
    {",--draft-max,--draft-n,--spec-draft-n-max,--spec-type,", "--draft"},
    {",-r,--reverse-prompt,", "--stop"},
    {",--chat-template-file,--chat-template,", "--template"},
    {",--chat-template-kwargs,--think,--reasoning-budget,-rea,", "--var"},
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
     "--devices vulkan:0 computes on a GPU, whole layers and as many experts as fit"},
    {",-fa,--flash-attn,", "attention needs no such choice here: leave it out"},
    {",-mmap,--mmap,--no-mmap,--mlock,", "weights are read into memory of our own, and --ram bounds it: leave it out"},
    {",--models-dir,", "--models"},
    {",--mmproj,-mm,--image,--audio,", "models are run with text alone here"},
    {",--jinja,", "chat templates always run: leave it out"},
    {",-e,--escape,-no-cnv,--no-conversation,--single-turn,-st,", "that is how it works here: leave it out"},
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

/* What stands beside a name, which may be as long as `between`; NULL: it isn't there. */
static const char *find_foreign(const struct foreign *list, size_t n_list, const char *name, size_t n)
{
    char between[64];
    if ((size_t)snprintf(between, sizeof between, ",%.*s,", (int)n, name) >= sizeof between)
        return NULL;
    for (size_t i = 0; i < n_list; i++)
        if (strstr(list[i].names, between))
            return list[i].ours;
    return NULL;
}

const char *hint_command(const char *name)
{
    return find_foreign(commands_elsewhere, N_FOREIGN(commands_elsewhere), name, strlen(name));
}

/* The form of an option's name that is nearest to a word, or that begins with it; NULL: none is near. */
static const struct option *find_near(const struct option *options, int n_option, const char *word)
{
    const struct option *near = NULL;
    for (int least = NEAR_MAX, i = 0; i < n_option && strlen(word) > 3; i++) {
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
    const char *foreign = find_foreign(options_elsewhere, N_FOREIGN(options_elsewhere), word, n);
    if (foreign && foreign[0] == '-' && !strchr(foreign, ' ')) {
        if (options_find(options, n_option, foreign, strlen(foreign)))
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
