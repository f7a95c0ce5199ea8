/* SPDX-License-Identifier: Apache-2.0 */
/* json.c - see json.h. No state. */
#include "trace/json.h"

#include <stdio.h>
#include <string.h>

/* The bytes of the UTF-8 character at the start of text; 0: not valid UTF-8. */
static unsigned int utf8_length(const unsigned char *text)
{
    /* By the first byte: the length, and the range of the second byte, which excludes overlong forms, surrogates and
     * code points beyond Unicode. */
    static const struct {
        unsigned char first, last, len, low, high;
    } forms[] = {{0x01, 0x7f, 1, 0, 0},       {0xc2, 0xdf, 2, 0x80, 0xbf}, {0xe0, 0xe0, 3, 0xa0, 0xbf},
                 {0xe1, 0xec, 3, 0x80, 0xbf}, {0xed, 0xed, 3, 0x80, 0x9f}, {0xee, 0xef, 3, 0x80, 0xbf},
                 {0xf0, 0xf0, 4, 0x90, 0xbf}, {0xf1, 0xf3, 4, 0x80, 0xbf}, {0xf4, 0xf4, 4, 0x80, 0x8f}};

    for (unsigned int i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        if (text[0] < forms[i].first || text[0] > forms[i].last)
            continue;
        if (forms[i].len > 1 && (text[1] < forms[i].low || text[1] > forms[i].high))
            return 0;
        for (unsigned int k = 2; k < forms[i].len; k++)
            if (text[k] >> 6 != 2)
                return 0;
        return forms[i].len;
    }
    return 0;
}

void json_text(char *buf, size_t len, const char *text)
{
    size_t at = 0;

    while (*text) {
        const unsigned char c = (unsigned char)*text;
        const unsigned int whole = utf8_length((const unsigned char *)text);
        char one[8];
        int n;

        if (c < 32 || c == 127)
            n = snprintf(one, sizeof(one), "\\u%04x", c);
        else
            n = snprintf(one, sizeof(one), "%s%.*s", c == '"' || c == '\\' ? "\\" : "", whole ? (int)whole : 1,
                         whole ? text : "?");
        if (at + (size_t)n >= len)
            break;
        memcpy(buf + at, one, (size_t)n);
        at += (size_t)n;
        text += whole ? whole : 1;
    }
    buf[at] = '\0';
}

unsigned int json_utf8(char *to, uint32_t character)
{
    const unsigned int len = character < 0x80 ? 1 : character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;

    for (unsigned int i = len - 1; i; i--, character >>= 6)
        to[i] = (char)(0x80 | (character & 0x3f));
    to[0] = (char)(len == 1 ? character : 0xf00u >> len | character);
    return len;
}

void json_clean(char *text)
{
    for (; *text; text++)
        if (*text < 32 || *text > 126 || *text == '"' || *text == '\\')
            *text = '?';
}
