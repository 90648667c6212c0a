/* Answers as models of each family write them, and what is to be read in them. */
#ifndef TESTS_REPLY_SAMPLES_H
#define TESTS_REPLY_SAMPLES_H

#include <stddef.h>

/* What the templates of the families hold. */
#define BAR           "\357\275\234"
#define LOW           "\342\226\201"
#define DEEPSEEK(s)   "<" BAR s BAR ">"
#define DSML          BAR "DSML" BAR
#define HERMES        "<think> <tool_call>"
#define QWEN3_CODER   "<think> <tool_call> <parameter="
#define GLM4          "<think> <tool_call> <arg_key>"
#define DEEPSEEK_V3   "<think> " CALLS_BEGIN
#define DEEPSEEK_V3_2 "<think> <" DSML "function_calls>"
#define GPT_OSS       "<|channel|>analysis"
#define LLAMA         "<|start_header_id|>"
#define MISTRAL       "[TOOL_CALLS] [THINK]"
#define MINIMAX_M2    "<think> <minimax:tool_call>"
#define NS            "]<]minimax[>["
#define MINIMAX_M3    "<mm:think> " NS " <tool_call>"
#define KIMI_K2       "<think> <|tool_calls_section_begin|>"
#define KIMI_K3       "<|open|>"
#define GEMMA4        "<|tool_call>call: <|channel>thought"
#define LFM2          "<|tool_call_start|>"
#define LISTS         "<think> <TOOLCALL>"
#define HY3           "HYTK = ':opensource'"
#define SOLAR         "<|tool_call:begin|> <|begin|>assistant<|think|>"
#define GRANITE       "<think> <|tool_call|>"
#define GIGACHAT      "<|function_call|> <|role_sep|>"
#define GIGACHAT_3_0  "<|role_sep|>"
#define ERNIE         "<think> <tool_call> <global_setting>"
#define GENERIC       "<think>"
#define CALLS_BEGIN   DEEPSEEK("tool" LOW "calls" LOW "begin")
#define CALLS_END     DEEPSEEK("tool" LOW "calls" LOW "end")
#define CALL_BEGIN    DEEPSEEK("tool" LOW "call" LOW "begin")
#define CALL_END      DEEPSEEK("tool" LOW "call" LOW "end")
#define SEP           DEEPSEEK("tool" LOW "sep")

static const char sample_tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":"
    "{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},\"unit\":{\"enum\":[\"C\",\"F\"]}},"
    "\"required\":[\"city\"]}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"get_time\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}"
    "},"
    "{\"type\":\"function\",\"function\":{\"name\":\"write-file\",\"parameters\":{\"type\":\"object\",\"properties\":"
    "{\"path\":{\"$ref\":\"#/$defs/path\"},\"text\":{\"type\":\"string\"},\"tags\":{\"type\":\"array\"},"
    "\"options\":{\"type\":\"object\"},\"append\":{\"type\":\"boolean\"},"
    "\"owner\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},\"mode\":{}},"
    "\"$defs\":{\"path\":{\"type\":\"string\"}}}}},"
    "{\"type\":\"web_search\"}]";

struct reply_sample {
    const char *source; /* of the template, as far as it counts */
    const char *text;
    const char *events; /* as the tests write them: R[reasoning] C[content] CALL[name] A[arguments] END[id] N[note] */
};

static const struct reply_sample samples[] = {
    /* Hermes */
    {HERMES,
     "<think>\nhm\n</think>\n\nLet me look.\n\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
     "\"Paris\", \"days\": 3}}\n</tool_call>",
     "R[hm\n] C[Let me look.] CALL[get_weather] A[{\"city\":\"Paris\",\"days\":3}] END[] "},
    {HERMES,
     "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Z\303\274rich "
     "\\\"\\u00fc\\ud83d\\ude00\\n\"}}"
     "\n</tool_call>\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>\nDone.",
     "CALL[get_weather] A[{\"city\":\"Z\303\274rich \\\"\\u00fc\\ud83d\\ude00\\n\"}] END[] CALL[get_time] A[{}] END[] "
     "C[Done.] "},
    {HERMES,
     "<tool_call>{\"arguments\": {\"path\": \"a\", \"options\": {\"x\": [1, -2.5e3, {\"y\": null}], \"z\": {}}, "
     "\"tags\": [], \"append\": true}, \"id\": \"c1\", \"name\": \"write-file\"}</tool_call>",
     "CALL[write-file] "
     "A[{\"path\":\"a\",\"options\":{\"x\":[1,-2.5e3,{\"y\":null}],\"z\":{}},\"tags\":[],\"append\":true}]"
     " END[c1] "},
    {HERMES, "<tool_call>\n{\"name\": \"get_time\"}\n</tool_call>", "CALL[get_time] A[{}] END[] "},
    {HERMES, "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}", "CALL[get_time] A[{}] END[] "},
    {HERMES, "A <tool_call> is a mark.", "C[A] N[] C[ <tool_call> is a mark.] "},
    {HERMES, "Hi  <b> \n", "C[Hi  <b> \n] "},
    {HERMES, "<tool_call>\n{\"name\": \"no_such\", \"arguments\": {\"a\": 1}}\n</tool_call>",
     "N[] C[<tool_call>\n{\"name\": \"no_such\", \"arguments\": {\"a\": 1}}\n</tool_call>] "},
    {HERMES, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Par",
     "CALL[get_weather] A[{\"city\":\"Par\"}] END[] N[] "},
    {HERMES, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\" \"Paris\"}}\n</tool_call> ok",
     "CALL[get_weather] A[{}] END[] N[] C[\"city\" \"Paris\"}}\n] C[ok] "},
    {HERMES, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"a\tb\\d\\ud800x\"},}\n</tool_call>",
     "CALL[get_weather] A[{\"city\":\"a\\tb\\\\d\357\277\275x\"}] END[] "},
    {HERMES, "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}}\n</tool_call>\nok",
     "CALL[get_time] A[{}] END[] N[] C[}\n] C[ok] "},
    {HERMES, "<tool_call>{\"name\": \"get_weather\", \"arguments\": \"{\\\"city\\\": \\\"a\\\\nb\\\"}\"}</tool_call>",
     "CALL[get_weather] A[{\"city\":\"a\\nb\"}] END[] "},
    {HERMES, "<tool_call>{\"name\": \"get_time\", \"arguments\": null}</tool_call>", "CALL[get_time] A[{}] END[] "},
    {HERMES, "<tool_call>{\"name\": \"get_time\", \"arguments\": [1]}</tool_call>",
     "N[] C[<tool_call>{\"name\": \"get_time\", \"arguments\": [1]}</tool_call>] "},
    /* Qwen3-Coder */
    {QWEN3_CODER,
     "I write.\n<tool_call>\n<function=write-file>\n<parameter=path>\n/tmp/\"x\"\n</parameter>\n<parameter=text>\n"
     "if a < b:\n    <parameter>\\n\n</parameter>\n<parameter=append>\nTrue\n</parameter>\n<parameter=tags>\n"
     "[\"a\", 1]\n</parameter>\n<parameter=options>\n{\"x\": 1\n</parameter>\n<parameter=mode>\n['a', "
     "None]\n</parameter>\n</function>\n</tool_call>",
     "C[I write.] CALL[write-file] A[{\"path\":\"/tmp/\\\"x\\\"\",\"text\":\"if a < b:\\n    "
     "<parameter>\\\\n\",\"append\":true,\"tags\":[\"a\",1],\"options\":\"{\\\"x\\\": 1\",\"mode\":[\"a\",null]}] "
     "END[] "},
    {QWEN3_CODER,
     "<tool_call>\n<function=get_time>\n</function>\n</tool_call>\n<tool_call>\n<function=get_weather>\n"
     "<parameter=city>\n123\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
     "CALL[get_time] A[{}] END[] CALL[get_weather] A[{\"city\":\"123\",\"days\":2}] END[] "},
    {QWEN3_CODER, "<function=get_weather>\n<parameter=city>\n\n</parameter>\n</function>\nok",
     "CALL[get_weather] A[{\"city\":\"\"}] END[] C[ok] "},
    {QWEN3_CODER,
     "<tool_call>\n<function=write-file>\n<parameter=owner>\nnull\n</parameter>\n<parameter=mode>\nfree text\n"
     "</parameter>\n</function>\n</tool_call>",
     "CALL[write-file] A[{\"owner\":null,\"mode\":\"free text\"}] END[] "},
    {QWEN3_CODER,
     "<tool_call>\n<function=write-file>\n<parameter=owner>\nnullable\n</parameter>\n</function>\n</tool_call>",
     "CALL[write-file] A[{\"owner\":\"nullable\"}] END[] "},
    {QWEN3_CODER,
     "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>",
     "CALL[get_weather] A[{\"city\":\"Paris\"}] END[] "},
    {QWEN3_CODER,
     "<tool_call>\n<function=write-file>\n<parameter=text>\n<b>\n</parameter>\n<p>\n</parameter>\n<parameter=tags>\n"
     "[\"</parameter>\"]\n</parameter>\n</function>\n</tool_call>",
     "CALL[write-file] A[{\"text\":\"<b>\\n</parameter>\\n<p>\",\"tags\":[\"</parameter>\"]}] END[] "},
    {QWEN3_CODER, "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar",
     "CALL[get_weather] A[{\"city\":\"Par\"}] END[] N[] "},
    /* GLM */
    {GLM4,
     "<think>a</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>\346\235\261\344\272\254</"
     "arg_value>\n"
     "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>get_time\n</tool_call>",
     "R[a] CALL[get_weather] A[{\"city\":\"\346\235\261\344\272\254\",\"days\":3}] END[] CALL[get_time] A[{}] END[] "},
    {GLM4,
     "<tool_call>write-file<arg_key>text</arg_key><arg_value> a\n</arg_value><arg_key>options</arg_key><arg_value>"
     "{\"k\": [true]}</arg_value></tool_call><tool_call>get_time</tool_call> and",
     "CALL[write-file] A[{\"text\":\" a\\n\",\"options\":{\"k\":[true]}}] END[] CALL[get_time] A[{}] END[] C[and] "},
    {GLM4, "<tool_call>other</tool_call>", "N[] C[<tool_call>other</tool_call>] "},
    {GLM4, "<tool_call>get_weather\n<arg_key>city</arg_key> is",
     "N[] C[<tool_call>get_weather\n<arg_key>city</arg_key> is] "},
    /* DeepSeek */
    {DEEPSEEK_V3,
     "</think>Hm.\n\n" CALLS_BEGIN CALL_BEGIN "get_weather" SEP "{\"city\": \"Paris\"}" CALL_END CALL_BEGIN
     "get_time" SEP "{}" CALL_END CALLS_END,
     "C[Hm.] CALL[get_weather] A[{\"city\":\"Paris\"}] END[] CALL[get_time] A[{}] END[] "},
    {DEEPSEEK_V3,
     CALLS_BEGIN CALL_BEGIN "function" SEP "get_weather\n```json\n{\"city\": \"Paris\"}\n```" CALL_END "\n" CALL_BEGIN
                            "function" SEP "get_time\n```json\n{}\n```" CALL_END CALLS_END,
     "CALL[get_weather] A[{\"city\":\"Paris\"}] END[] CALL[get_time] A[{}] END[] "},
    {DEEPSEEK_V3, CALLS_BEGIN CALL_BEGIN "nothing" SEP "{}" CALL_END CALLS_END,
     "N[] C[" CALLS_BEGIN CALL_BEGIN "nothing" SEP "{}" CALL_END CALLS_END "] "},
    {DEEPSEEK_V3_2,
     "Ok.\n\n<" DSML "function_calls>\n<" DSML "invoke name=\"write-file\">\n<" DSML
     "parameter name=\"text\" string=\"true\">1 < 2</" DSML "parameter>\n<" DSML
     "parameter name=\"tags\" string=\"false\">[1, 2]</" DSML "parameter>\n</" DSML "invoke>\n<" DSML
     "invoke name=\"get_time\">\n</" DSML "invoke>\n</" DSML "function_calls>",
     "C[Ok.] CALL[write-file] A[{\"text\":\"1 < 2\",\"tags\":[1,2]}] END[] CALL[get_time] A[{}] END[] "},
    /* gpt-oss */
    {GPT_OSS,
     "<|channel|>analysis<|message|>Need it.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
     "<|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|>",
     "R[Need it.] CALL[get_weather] A[{\"city\":\"Paris\"}] END[] "},
    {GPT_OSS,
     "<|channel|>analysis<|message|>a<|end|><|start|>assistant to=functions.get_time<|channel|>commentary json"
     "<|message|>{}",
     "R[a] CALL[get_time] A[{}] END[] "},
    {GPT_OSS, " to=functions.get_time<|channel|>commentary json<|message|>{}", "CALL[get_time] A[{}] END[] "},
    {GPT_OSS,
     "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.get_time"
     "<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|>It is two.<|return|>",
     "C[I look.] CALL[get_time] A[{}] END[] C[It is two.] "},
    {GPT_OSS, "<|channel|>commentary to=browser.search<|message|>x<|call|>",
     "N[] C[<|channel|>commentary to=browser.search<|message|>x] "},
    /* Llama */
    {LLAMA, "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}",
     "CALL[get_weather] A[{\"city\":\"Paris\"}] END[] "},
    {LLAMA,
     "{\"type\": \"function\", \"function\": \"get_time\", \"parameters\": {}}; {\"name\": \"get_time\", "
     "\"parameters\": {}}",
     "CALL[get_time] A[{}] END[] CALL[get_time] A[{}] END[] "},
    {LLAMA, "{\"name\": \"Bob\", \"age\": 3}", "C[{\"name\": \"Bob\", \"age\": 3}] "},
    {LLAMA, "{\"a\": 1} and", "C[{\"a\": 1} and] "},
    {LLAMA, "See {\"name\": \"get_time\"}", "C[See {\"name\": \"get_time\"}] "},
    {LLAMA, "<|python_tag|>{\"name\": \"get_time\", \"parameters\": {}}", "CALL[get_time] A[{}] END[] "},
    {LLAMA, "<|python_tag|>get_weather.call(city=\"Paris\")", "CALL[get_weather] A[{\"city\":\"Paris\"}] END[] "},
    {LLAMA, "<|python_tag|>print(1)", "C[<|python_tag|>print(1)] "},
    {LLAMA, "Hm. <function=get_weather>{\"city\": \"Paris\"}</function>",
     "C[Hm.] CALL[get_weather] A[{\"city\":\"Paris\"}] END[] "},
    {LLAMA, "[get_weather(city='It\\'s \\x41', days=3), write-file(tags=[1, 'b',], options={'k': None}, append=False)]",
     "CALL[get_weather] A[{\"city\":\"It's \\u0041\",\"days\":3}] END[] CALL[write-file] "
     "A[{\"tags\":[1,\"b\"],\"options\":{\"k\":null},\"append\":false}] END[] "},
    {LLAMA, "[{\"name\": \"get_time\", \"parameters\": {}}, {\"name\": \"get_time\", \"parameters\": {}}]",
     "CALL[get_time] A[{}] END[] CALL[get_time] A[{}] END[] "},
    {LLAMA, "[1] says so", "C[[1] says so] "},
    {LLAMA, "{\"name\": \"get_weather\", \"parameters\": {\"city\": Paris}} So: a, b; see [1], please.",
     "CALL[get_weather] A[{\"city\":null}] END[] N[] C[Paris}} So: a, b; see [1], please.] "},
    /* Mistral */
    {MISTRAL,
     "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}, \"id\": \"a1b2c3d4e\"}, "
     "{\"name\": \"get_time\", \"arguments\": {}}]",
     "CALL[get_weather] A[{\"city\":\"Paris\"}] END[a1b2c3d4e] CALL[get_time] A[{}] END[] "},
    {MISTRAL,
     "[THINK]a[/THINK]Ok.[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{\"city\": "
     "\"Paris\"}[TOOL_CALLS]get_time[ARGS]{}",
     "R[a] C[Ok.] CALL[get_weather] A[{\"city\":\"Paris\"}] END[a1b2c3d4e] CALL[get_time] A[{}] END[] "},
    {MISTRAL, "[TOOL_CALLS]get_time{} done", "CALL[get_time] A[{}] END[] C[done] "},
    {MISTRAL, "[TOOL_CALLS]nothing[ARGS]{}", "N[] C[[TOOL_CALLS]nothing[ARGS]{}] "},
    /* MiniMax */
    {MINIMAX_M2,
     "<think>\nb\n</think>\n\nOk.\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Paris"
     "</parameter>\n<parameter name=\"days\">3</parameter>\n</invoke>\n<invoke name=\"get_time\">\n</invoke>\n"
     "</minimax:tool_call>",
     "R[b\n] C[Ok.] CALL[get_weather] A[{\"city\":\"Paris\",\"days\":3}] END[] CALL[get_time] A[{}] END[] "},
    {MINIMAX_M2,
     "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Paris</parameter>\n</invoke>\nhuh"
     "\n</minimax:tool_call>\nso",
     "CALL[get_weather] A[{\"city\":\"Paris\"}] END[] N[] C[\nhuh\n] C[so] "},
    {MINIMAX_M2, /* the mark within the value is followed by nothing that follows values */
     "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Paris</parameter>\nhuh</parameter>"
     "\n</invoke>\n</minimax:tool_call>",
     "CALL[get_weather] A[{\"city\":\"Paris</parameter>\\nhuh\"}] END[] "},
    {MINIMAX_M3,
     "<mm:think>b</mm:think>Ok." NS "<tool_call>\n" NS "<invoke name=\"get_weather\">" NS "<city>Paris <b>" NS
     "</city>" NS "<days>3" NS "</days>" NS "</invoke>\n" NS "<invoke name=\"get_time\">" NS "</invoke>\n" NS
     "</tool_call>",
     "R[b] C[Ok.] CALL[get_weather] A[{\"city\":\"Paris <b>\",\"days\":3}] END[] CALL[get_time] A[{}] END[] "},
    {MINIMAX_M3,
     NS "<tool_call>" NS "<invoke name=\"write-file\">" NS "<tags>" NS "<item>a" NS "</item>\n" NS "<item> 2nd" NS
        "</item>" NS "</tags>" NS "<options>" NS "<a>" NS "<item>" NS "<b>true" NS "</b>" NS "</item>" NS "</a>" NS
        "<c>" NS "</c>" NS "</options>" NS "<text>x\n" NS "</text>" NS "</invoke>" NS "</tool_call>so",
     "CALL[write-file] A[{\"tags\":[\"a\",\" 2nd\"],\"options\":{\"a\":[{\"b\":true}],\"c\":\"\"},\"text\":\"x\\n\"}] "
     "END[] C[so] "},
    {MINIMAX_M3, NS "<tool_call>" NS "<invoke name=\"write-file\">" NS "<tags>" NS "<item>a",
     "CALL[write-file] A[{\"tags\":\"" NS "<item>a\"}] END[] N[] "},
    /* Kimi */
    {KIMI_K2,
     "Ok.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": "
     "\"Paris\"}<|tool_call_end|><|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{}"
     "<|tool_call_end|><|tool_calls_section_end|>",
     "C[Ok.] CALL[get_weather] A[{\"city\":\"Paris\"}] END[functions.get_weather:0] CALL[get_time] A[{}] "
     "END[functions.get_time:1] "},
    {KIMI_K2,
     "<think>so<|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:0<|tool_call_argument_begin|>{}"
     "<|tool_call_end|><|tool_calls_section_end|>ok",
     "R[so] CALL[get_time] A[{}] END[functions.get_time:0] C[ok] "},
    {KIMI_K3,
     "<|open|>think<|sep|>hm<|close|>think<|sep|><|open|>response<|sep|>Ok.<|close|>response<|sep|><|open|>tools<|sep|>"
     "<|open|>call tool=\"get_weather\" index=\"1\"<|sep|><|open|>argument key=\"city\" type=\"string\"<|sep|>Pa\"ris"
     "<|close|>argument<|sep|><|open|>argument key=\"days\" type=\"number\"<|sep|>3<|close|>argument<|sep|>"
     "<|close|>call<|sep|><|open|>call tool=\"get_time\" index=\"2\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>"
     "<|close|>message<|sep|>",
     "R[hm] C[Ok.] CALL[get_weather] A[{\"city\":\"Pa\\\"ris\",\"days\":3}] END[] CALL[get_time] A[{}] END[] "},
    {KIMI_K3,
     "<|open|>tools<|sep|><|open|>call tool=\"get_weather\" index=\"1\"<|sep|><|open|>json type=\"object\"<|sep|>"
     "{\"city\": \"Paris\"}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
     "CALL[get_weather] A[{\"city\":\"Paris\"}] END[] "},
    {KIMI_K3,
     "<|open|>tools<|sep|><|open|>call tool=\"write-file\" index=\"1\"<|sep|><|open|>argument key=\"owner\" "
     "type=\"null\"<|sep|>null<|close|>argument<|sep|><|open|>argument key=\"tags\" type=\"array\"<|sep|>[\"a",
     "CALL[write-file] A[{\"owner\":null,\"tags\":\"[\\\"a\"}] END[] N[] "},
    {KIMI_K3,
     "<|open|>tools<|sep|><|open|>call tool=\"write-file\" index=\"1\"<|sep|><|open|>argument "
     "key=\"a&quot;b&amp;c&amp;amp;\" "
     "type=\"string\"<|sep|>&quot;<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
     "CALL[write-file] A[{\"a\\\"b&c&amp;\":\"&quot;\"}] END[] "},
    {MINIMAX_M3, "</mm:think>Ok. </mm:think>", "C[Ok. </mm:think>] "}, /* without reasoning */
    /* Gemma */
    {GEMMA4,
     "<|channel>thought\nhm\n<channel|><|tool_call>call:get_weather{city:<|\"|>Pa<|x\"ris\\<|\"|>,days:3}<tool_call|>"
     "<|tool_call>call:get_time{}<tool_call|>",
     "R[hm\n] CALL[get_weather] A[{\"city\":\"Pa<|x\\\"ris\\\\\",\"days\":3}] END[] CALL[get_time] A[{}] END[] "},
    {GEMMA4,
     "<|tool_call>call:write-file{options:{a:{<|\"|>b<|\"|>:true},c:[1,<|\"|>d<|\"|>,[]]},owner:null,path:free "
     "text}<tool_call|>",
     "CALL[write-file] A[{\"options\":{\"a\":{\"b\":true},\"c\":[1,\"d\",[]]},\"owner\":null,\"path\":\"free text\"}] "
     "END[] "},
    {GEMMA4, "<|tool_call>call:get_weather{city:<|\"|>Par", "CALL[get_weather] A[{\"city\":\"Par\"}] END[] N[] "},
    {GEMMA4, "<|tool_call>call:get_weather{city", "CALL[get_weather] A[{}] END[] N[] "},
    /* Hy3 */
    {HY3,
     "<think:opensource>hm</think:opensource>Ok.<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:"
     "opensource>\n<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Pa\nris</"
     "arg_value:opensource>\n"
     "<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>3</arg_value:opensource>\n"
     "</tool_call:opensource>\n<tool_call:opensource>get_time<tool_sep:opensource>\n</tool_call:opensource>\n"
     "</tool_calls:opensource>",
     "R[hm] C[Ok.] CALL[get_weather] A[{\"city\":\"Pa\\nris\",\"days\":3}] END[] CALL[get_time] A[{}] END[] "},
    /* Solar Open */
    {SOLAR,
     "<|think|>hm<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather"
     "<|tool_call:args|>{\"city\": \"Paris\"}<|tool_call:end|><|tool_call:begin|>f6g7h8i9j0<|tool_call:name|>get_time"
     "<|tool_call:args|>{}<|tool_call:end|><|calls|>",
     "R[hm] CALL[get_weather] A[{\"city\":\"Paris\"}] END[a1b2c3d4e5] CALL[get_time] A[{}] END[f6g7h8i9j0] "},
    {SOLAR, "<|think|>hm<|end|><|begin|>assistant<|content|>Ok. <think><|end|>", "R[hm] C[Ok. <think>] "},
    /* ERNIE 4.5 Thinking */
    {ERNIE, "<think>\nhm\n</think>\n\n<response>\nThe <response> is </response> here\n</response>\n",
     "R[hm\n] C[The <response> is </response> here] "},
    {ERNIE, "<think>\nhm\n</think>\n\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>\n",
     "R[hm\n] CALL[get_time] A[{}] END[] "},
    {ERNIE, "Ok.</response", "C[Ok.</response] "},
    /* Granite 3 */
    {GRANITE,
     "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}, {\"name\": \"get_time\", "
     "\"arguments\": {}}]",
     "CALL[get_weather] A[{\"city\":\"Paris\"}] END[] CALL[get_time] A[{}] END[] "},
    {GRANITE, "<|tool_call|>[{\"name\": \"get_time\", \"arguments\": {}}] Wait.",
     "CALL[get_time] A[{}] END[] C[Wait.] "},
    /* GigaChat */
    {GIGACHAT, "I look.<|function_call|>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}",
     "C[I look.] CALL[get_weather] A[{\"city\":\"Paris\"}] END[] "},
    {GIGACHAT_3_0,
     "I look.<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
     "\"Paris\"}}",
     "C[I look.] CALL[get_weather] A[{\"city\":\"Paris\"}] END[] "},
    /* LFM2 */
    {LFM2, "Ok.<|tool_call_start|>[get_weather(city=\"Paris\"), get_time()]<|tool_call_end|>Wait.",
     "C[Ok.] CALL[get_weather] A[{\"city\":\"Paris\"}] END[] CALL[get_time] A[{}] END[] C[Wait.] "},
    /* lists */
    {LISTS,
     "<TOOLCALL>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}, {\"name\": \"get_time\", "
     "\"arguments\": {}}]</TOOLCALL>",
     "CALL[get_weather] A[{\"city\":\"Paris\"}] END[] CALL[get_time] A[{}] END[] "},
    {LISTS,
     "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_time\", \"parameters\": {}}\n]"
     "<|END_ACTION|>",
     "CALL[get_time] A[{}] END[] "},
    {LISTS,
     "<tool_calls>\n{\"name\": \"get_time\", \"arguments\": {}}\n{\"name\": \"get_time\", \"arguments\": {}}"
     "\n</tool_calls>",
     "CALL[get_time] A[{}] END[] CALL[get_time] A[{}] END[] "},
    /* others */
    {GENERIC, "So:\n```json\n{\"name\": \"get_time\", \"arguments\": {}}\n```\nok",
     "C[So:] CALL[get_time] A[{}] END[] C[ok] "},
    {GENERIC, "```json\n{\"x\": 1}\n```", "C[```json\n{\"x\": 1}\n```] "},
    {GENERIC, "{\"name\": \"get_time\", \"arguments\": {}}", "CALL[get_time] A[{}] END[] "},
};

enum { N_SAMPLES = sizeof samples / sizeof *samples };

#endif
