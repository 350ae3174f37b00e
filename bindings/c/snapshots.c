/* Snapshots, and the differences between them. */
#define _GNU_SOURCE
#include "connection.h"

#include <stdlib.h>

static int snapshot(kvfs *store, const char *what, const char *name) {
    struct word words[3] = {text("SNAPSHOT"), text(what), text(name)};
    return kvfs_say(store, words, 3);
}

int kvfs_snapshot_create(kvfs *store, const char *name) { return snapshot(store, "CREATE", name); }

int kvfs_snapshot_drop(kvfs *store, const char *name) { return snapshot(store, "DROP", name); }

int kvfs_snapshot_rollback(kvfs *store, const char *name) {
    return snapshot(store, "ROLLBACK", name);
}

int kvfs_snapshot_use(kvfs *store, const char *name) {
    if (name != NULL) {
        int left = store->inside != 0 ? kvfs_leave(store) : KVFS_OK;
        return left != KVFS_OK ? left : snapshot(store, "USE", name);
    }
    struct word words[2] = {text("SNAPSHOT"), text("LEAVE")};
    return kvfs_say(store, words, 2);
}

/* Reads the size of one side of a change, which is -1 if the side has no value. */
static int size_of(const struct reply *reply, long long *size) {
    *size = reply->kind == ':' ? reply->number : -1;
    return reply->kind == ':' || reply->kind == 0;
}

int kvfs_changes(kvfs *store, const char *before, const char *after, kvfs_change **changes,
                 size_t *count) {
    struct reply reply;
    struct word words[4] = {text("SNAPSHOT"), text("CHANGES"), text(before)};
    if (after != NULL)
        words[3] = text(after);
    int code = kvfs_call(store, words, after != NULL ? 4 : 3, &reply);
    if (code != KVFS_OK)
        return code;
    *count = 0;
    *changes = reply.kind == '*' ? calloc(reply.count + 1, sizeof **changes) : NULL;
    int sound = *changes != NULL;
    for (size_t i = 0; sound && i < reply.count; i++) {
        struct reply *one = reply.items[i].items;
        /* Longer rows describe collections and deadlines, which are not strings. */
        if (reply.items[i].count > 4)
            continue;
        kvfs_change *change = &(*changes)[*count];
        sound = reply.items[i].count == 4 && one[0].kind == '$' && one[1].kind == '$' &&
                size_of(&one[2], &change->before) && size_of(&one[3], &change->after);
        if (!sound)
            break;
        /* The change takes ownership of both texts. */
        change->dictionary = one[0].text;
        change->key = one[1].text;
        change->key_size = one[1].size;
        one[0].text = one[1].text = NULL;
        ++*count;
    }
    kvfs_reply_free(&reply);
    if (sound)
        return KVFS_OK;
    kvfs_changes_free(*changes, *count);
    *changes = NULL;
    *count = 0;
    return kvfs_lost(store);
}

void kvfs_changes_free(kvfs_change *changes, size_t count) {
    for (size_t i = 0; changes != NULL && i < count; i++) {
        free(changes[i].dictionary);
        free(changes[i].key);
    }
    free(changes);
}
