/* Access to keys, one by one and in ranges. */
#define _GNU_SOURCE
#include "connection.h"

#include <stdlib.h>

/* Number of tuples that a cursor requests at a time: the first number and the limit. */
enum { FIRST_PIECE = 16, LARGEST_PIECE = 1024 };

int kvfs_use(kvfs *store, const char *dictionary) {
    struct word words[2] = {text("USE"), text(dictionary)};
    return kvfs_say(store, words, 2);
}

int kvfs_put(kvfs *store, const void *key, size_t key_size, const void *value, size_t value_size) {
    struct word words[3] = {text("SET"), {key, key_size}, {value, value_size}};
    return kvfs_say(store, words, 3);
}

int kvfs_get(kvfs *store, const void *key, size_t key_size, void **value, size_t *value_size) {
    struct reply reply;
    struct word words[2] = {text("GET"), {key, key_size}};
    int code = kvfs_call(store, words, 2, &reply);
    if (code != KVFS_OK)
        return code;
    if (reply.kind == 0)
        return KVFS_ABSENT;
    if (reply.kind != '$') {
        kvfs_reply_free(&reply);
        return kvfs_lost(store);
    }
    *value = reply.text;
    *value_size = reply.size;
    return KVFS_OK;
}

int kvfs_delete(kvfs *store, const void *key, size_t key_size) {
    struct reply reply;
    struct word words[2] = {text("DEL"), {key, key_size}};
    int code = kvfs_call(store, words, 2, &reply);
    long long deleted = reply.number;
    kvfs_reply_free(&reply);
    return code != KVFS_OK ? code : deleted > 0 ? KVFS_OK : KVFS_ABSENT;
}

int kvfs_delete_range(kvfs *store, const void *from, size_t from_size, const void *to,
                      size_t to_size) {
    struct word words[4] = {text("DELRANGE"), {from, from_size}, {to, to_size}, text("EXACT")};
    return kvfs_say(store, words, 4);
}

int kvfs_sync(kvfs *store) {
    struct word words[1] = {text("SYNC")};
    return kvfs_say(store, words, 1);
}

/* --- cursors --- */

struct kvfs_cursor {
    kvfs *store;
    unsigned flags;
    /* The rest of the range after the current piece. A size of 0 means that there is no bound. */
    char *from, *to;
    size_t from_size, to_size;
    /* The current piece, and the index of its next item. */
    struct reply piece;
    size_t next;
    size_t wanted;
    int last; /* nothing follows the piece */
};

/* Returns a copy of `size` bytes followed by `behind` zero bytes. */
static char *copy_of(const void *bytes, size_t size, size_t behind) {
    char *copy = calloc(size + behind + 1, 1);
    if (copy != NULL && size != 0)
        memcpy(copy, bytes, size);
    return copy;
}

int kvfs_range(kvfs *store, const void *from, size_t from_size, const void *to, size_t to_size,
               unsigned flags, kvfs_cursor **cursor) {
    *cursor = calloc(1, sizeof **cursor);
    if (*cursor != NULL) {
        (*cursor)->from = copy_of(from, from_size, 0);
        (*cursor)->to = copy_of(to, to_size, 0);
    }
    if (*cursor == NULL || (*cursor)->from == NULL || (*cursor)->to == NULL) {
        kvfs_cursor_close(*cursor);
        *cursor = NULL;
        return kvfs_fail(store, KVFS_ERROR, "there is no memory for a cursor");
    }
    (*cursor)->store = store;
    (*cursor)->flags = flags;
    (*cursor)->from_size = from_size;
    (*cursor)->to_size = to_size;
    (*cursor)->wanted = FIRST_PIECE;
    return KVFS_OK;
}

void kvfs_cursor_close(kvfs_cursor *cursor) {
    if (cursor == NULL)
        return;
    kvfs_reply_free(&cursor->piece);
    free(cursor->from);
    free(cursor->to);
    free(cursor);
}

/* Shortens the range: it then begins after the last key of the piece, or ends before that key if
 * the cursor goes backward. */
static int shorten(kvfs_cursor *c, const struct reply *key) {
    int reverse = (c->flags & KVFS_REVERSE) != 0;
    char *bound = copy_of(key->text, key->size, 1);
    if (bound == NULL)
        return kvfs_fail(c->store, KVFS_ERROR, "there is no memory for a key");
    if (reverse) {
        /* No key comes before the empty key, and an empty bound would mean that there is none. */
        c->last = key->size == 0;
        free(c->to);
        c->to = bound;
        c->to_size = key->size;
    } else {
        /* The next possible key is the last key with a zero byte appended. */
        free(c->from);
        c->from = bound;
        c->from_size = key->size + 1;
    }
    return KVFS_OK;
}

static int read_piece(kvfs_cursor *c, size_t width) {
    char limit[24];
    snprintf(limit, sizeof limit, "%zu", c->wanted);
    struct word words[8] = {text("RANGE"), {c->from, c->from_size}, {c->to, c->to_size},
                            text("EXACT"), text("LIMIT"),           text(limit)};
    size_t count = 6;
    if (c->flags & KVFS_REVERSE)
        words[count++] = text("REV");
    if (c->flags & KVFS_KEYS)
        words[count++] = text("NOVALUES");
    kvfs_reply_free(&c->piece);
    c->next = 0;
    int code = kvfs_call(c->store, words, count, &c->piece);
    if (code != KVFS_OK)
        return code;
    if (c->piece.kind != '*' || c->piece.count % width != 0)
        return kvfs_lost(c->store);
    for (size_t i = 0; i < c->piece.count; i++)
        if (c->piece.items[i].kind != '$')
            return kvfs_lost(c->store);
    c->last = c->piece.count < c->wanted * width;
    c->wanted = c->wanted * 2 > LARGEST_PIECE ? LARGEST_PIECE : c->wanted * 2;
    return c->last ? KVFS_OK : shorten(c, &c->piece.items[c->piece.count - width]);
}

int kvfs_next(kvfs_cursor *c, const void **key, size_t *key_size, const void **value,
              size_t *value_size) {
    size_t width = c->flags & KVFS_KEYS ? 1 : 2;
    if (c->next >= c->piece.count) {
        if (c->last)
            return KVFS_ABSENT;
        int code = read_piece(c, width);
        if (code != KVFS_OK)
            return code;
        if (c->piece.count == 0)
            return KVFS_ABSENT;
    }
    const struct reply *item = &c->piece.items[c->next];
    c->next += width;
    *key = item[0].text;
    *key_size = item[0].size;
    if (value != NULL) {
        *value = width == 2 ? item[1].text : NULL;
        *value_size = width == 2 ? item[1].size : 0;
    }
    return KVFS_OK;
}
