/* SPDX-License-Identifier: Apache-2.0 */
/* test_json.c - shim/trace/json.c: which bytes of a name come into the trace as they are. Each character of Unicode is
 * tried, and each way to begin one wrong. */

#include "isolated.h"
#include "trace/json.h"
#include "trace/trace.h"

/* UTF-8 of a number; what it returns: bytes. That it is right is seen by reading it again. */
static unsigned int encode(unsigned int n, unsigned char *to)
{
    const unsigned int len = json_utf8((char *)to, n);
    unsigned int read = len == 1 ? to[0] : to[0] & (0x7fu >> len);

    for (unsigned int i = 1; i < len; i++)
        read = read << 6 | (to[i] & 0x3f);
    assert_int_equal(read, n);
    assert_int_equal(len, n < 0x80 ? 1 : n < 0x800 ? 2 : n < 0x10000 ? 3 : 4);
    to[len] = '\0';
    return len;
}

static const char *written(const unsigned char *text)
{
    static char to[64];

    json_text(to, sizeof(to), (const char *)text);
    return to;
}

ISOLATED_CASE(test_characters)
{
    unsigned char text[8];
    char expected[16];

    for (unsigned int n = 1; n < 0x110000; n++) {
        const unsigned int len = encode(n, text);

        if (n >= 0xd800 && n < 0xe000) /* surrogates */
            strcpy(expected, "???");
        else if (n < 32 || n == 127)
            snprintf(expected, sizeof(expected), "\\u%04x", n);
        else
            snprintf(expected, sizeof(expected), "%s%s", n == '"' || n == '\\' ? "\\" : "", (char *)text);
        if (strcmp(written(text), expected) != 0)
            fail_msg("U+%04x", n);
        text[len - 1] = len > 1 ? '-' : text[len - 1]; /* its last byte is another's */
        if (len > 1 && (written(text)[0] != '?' || !strchr(written(text), '-')))
            fail_msg("U+%04x without its end", n);
    }
}

/* Each byte that begins nothing, numbers in more bytes than they take, and what is beyond Unicode. */
ISOLATED_CASE(test_none)
{
    unsigned char text[8] = {0};

    for (unsigned int first = 0x80; first < 0x100; first++)
        for (unsigned int second = 0x80; second < 0xc0; second++) {
            const unsigned int len = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
            const unsigned int n = len == 2   ? (first & 0x1f) << 6 | (second & 0x3f)
                                   : len == 3 ? (first & 0xf) << 12 | (second & 0x3f) << 6
                                              : (first & 0xf) << 18 | (second & 0x3f) << 12;

            memset(text, 0, sizeof(text));
            memset(text, 0x80, len);
            text[0] = (unsigned char)first;
            text[1] = (unsigned char)second;
            if (first < 0xc0 || n < (len == 2 ? 0x80u : len == 3 ? 0x800u : 0x10000u) || n >= 0x110000)
                assert_string_equal(written(text), len == 2 ? "??" : len == 3 ? "???" : "????");
        }
}

/* Where there is no room for all, what comes whole is there. */
ISOLATED_CASE(test_room)
{
    static const char text[] = "a\xc3\xa9\xe2\x82\xac\x01z", *const expected[] = {"",
                                                                                  "a",
                                                                                  "a",
                                                                                  "a\xc3\xa9",
                                                                                  "a\xc3\xa9",
                                                                                  "a\xc3\xa9",
                                                                                  "a\xc3\xa9\xe2\x82\xac"};
    char to[16];

    for (size_t len = 1; len <= COUNT(expected); len++) {
        memset(to, 'x', sizeof(to));
        json_text(to, len, text);
        assert_string_equal(to, expected[len - 1]);
        assert_int_equal(to[len], 'x');
    }
}

ISOLATED_CASE(test_clean)
{
    char text[256], clean[256];

    for (unsigned int c = 1; c < 256; c++) {
        text[c - 1] = (char)c;
        clean[c - 1] = (char)(c < 32 || c > 126 || c == '"' || c == '\\' ? '?' : c);
    }
    text[255] = clean[255] = '\0';
    json_clean(text);
    assert_string_equal(text, clean);
}
