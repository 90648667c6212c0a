#!/bin/sh
# Checks our tokens on llama.cpp's real vocabularies: models/ggml-vocab-NAME.gguf, .inp (texts), .out (ids).
#
#   check_vocabs.sh VOCAB_CASES_PROGRAM [LLAMA_CPP_SOURCES]
#
# Without a source tree, that of llama.cpp v0.5.0 is fetched from npm's node-llama-cpp into a cache folder
# beside the program (needs npm and git, once).
set -eu

[ $# -ge 1 ] || { echo "usage: $0 VOCAB_CASES_PROGRAM [LLAMA_CPP_SOURCES]" >&2; exit 2; }
. "$(dirname "$0")/llama_sources.sh"
program=$1
sources=${2:-$(llama_sources "$(dirname "$program")/vocabs-cache")}
names="gpt-2 qwen2 qwen35 llama-bpe llama-spm gemma-4 deepseek-llm deepseek-coder phi-3 command-r falcon
starcoder refact mpt"

failed=0
for name in $names; do
    vocab=$sources/models/ggml-vocab-$name.gguf
    "$program" "$vocab" "$vocab.inp" "$vocab.out" || { echo "FAILED: $name" >&2; failed=1; }
done
exit $failed
