/* Why an architecture is not known, for messages. */
#include <stdio.h>
#include <string.h>

#include "gguf/gguf.h"
#include "model/loader.h"

/* Kinds of models that this engine doesn't run, and llama.cpp's names for their architectures. */
static const struct {
    const char *archs, *what;
} kinds[] = {
    {" dream llada llada-moe rnd1 ",
     "it is a diffusion language model, which fills gaps instead of going on with a text"},
    {" bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert gemma-embedding "
     "llama-embed t5encoder ",
     "it is an encoder, which makes embeddings instead of going on with a text"},
    {" eagle3 dflash gemma4-assistant ", "it is a draft model, which guesses for another one"},
    {" deepseek2-ocr paddleocr cogvlm hunyuan_vl ", "it reads images"},
    {" clip ", "it is what reads images beside a model, not the model"},
    {" wavtokenizer-dec qwen3tts pockettts ", "it speaks"},
    {" graniteswitch ", "it switches between adapters within a text"},
};

const char *arch_why_unknown(const struct gguf *g, const char *arch)
{
    char word[64], key[80];
    snprintf(word, sizeof word, " %s ", arch);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strchr(arch, ' ') && strstr(kinds[i].archs, word))
            return kinds[i].what;
    snprintf(key, sizeof key, "%s.expert_count", arch);
    return gguf_find(g, key) ? "" : "it has no experts, and is none of the few dense ones that are known";
}
