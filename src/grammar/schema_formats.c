/* Formats as regular expressions: RFC 3339 dates and times, RFC 3986 URIs, RFC 5321 addresses and the like, as far as
 * regular expressions go. */
#include <string.h>

#include "grammar/schema_compiler.h"

#define DATE                                                                                                           \
    "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1["  \
    "0-9]|2[0-8]))"
#define LEAP  "(?:(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
#define CLOCK "(?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:\\.[0-9]+)?"
#define ZONE  "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4  OCTET "(?:\\." OCTET "){3}"
#define H16   "[0-9A-Fa-f]{1,4}"
#define LS32  "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                                           \
    "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32 "|(?:(?:" H16 ":)?" H16  \
    ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16 ")?::(?:" H16 ":){2}" LS32 "|(?:(?:" H16 ":){0,3}" H16      \
    ")?::" H16 ":" LS32 "|(?:(?:" H16 ":){0,4}" H16 ")?::" LS32 "|(?:(?:" H16 ":){0,5}" H16 ")?::" H16 "|(?:(?:" H16   \
    ":){0,6}" H16 ")?::)"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOST  LABEL "(?:\\." LABEL ")*"
#define HEX   "[0-9A-Fa-f]"
#define PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%" HEX HEX ")"
#define TAIL  "(?:\\?(?:" PCHAR "|[/?])*)?(?:#(?:" PCHAR "|[/?])*)?"
#define AUTH                                                                                                           \
    "//(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%" HEX HEX                                                                    \
    ")*@)?(?:\\[[0-9A-Fa-f:.]+\\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%" HEX HEX ")*)(?::[0-9]*)?(?:/" PCHAR "*)*"
#define URI      "[A-Za-z][A-Za-z0-9+.-]*:(?:" AUTH "|/(?:" PCHAR "+(?:/" PCHAR "*)*)?|" PCHAR "+(?:/" PCHAR "*)*|)" TAIL
#define NCHAR    "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%" HEX HEX ")"
#define RELATIVE "(?:" AUTH "|/(?:" PCHAR "+(?:/" PCHAR "*)*)?|" NCHAR "+(?:/" PCHAR "*)*|)" TAIL
#define ATOM     "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"

const char *schema_format(const char *name)
{
    static const struct {
        const char *name, *regex;
    } formats[] = {
        {"date-time", "^(?:" DATE "|" LEAP ")[Tt]" CLOCK ZONE "$"},
        {"date", "^(?:" DATE "|" LEAP ")$"},
        {"time", "^" CLOCK ZONE "$"},
        {"duration",
         "^P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)(?:T(?:[0-9]+H(?:[0-9]+M"
         "(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))?|T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)"
         "?|[0-9]+S))$"},
        {"email", "^" ATOM "(?:\\." ATOM ")*@" HOST "$"},
        {"hostname", "^" HOST "$"},
        {"ipv4", "^" IPV4 "$"},
        {"ipv6", "^" IPV6 "$"},
        {"uuid", "^" HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}$"},
        {"uri", "^" URI "$"},
        {"uri-reference", "^(?:" URI "|" RELATIVE ")$"},
        {"json-pointer", "^(?:/(?:[^~/]|~[01])*)*$"},
        {"relative-json-pointer", "^(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^~/]|~[01])*)*)$"},
        {"regex", ""},
        {"uri-template", ""},
        {"iri", ""},
        {"iri-reference", ""},
        {"idn-email", ""},
        {"idn-hostname", ""},
    };
    for (unsigned i = 0; i < sizeof formats / sizeof *formats; i++)
        if (!strcmp(name, formats[i].name))
            return formats[i].regex;
    return NULL;
}
