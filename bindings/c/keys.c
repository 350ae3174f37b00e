/* Keys, and the dictionaries they are in. */
#define _GNU_SOURCE
#include "connection.h"

int kvfs_use(kvfs *store, const char *dictionary) {
    struct reply reply;
    struct word words[2] = {text("USE"), text(dictionary)};
    return kvfs_call(store, words, 2, &reply);
}

int kvfs_put(kvfs *store, const void *key, size_t key_size, const void *value, size_t value_size) {
    struct reply reply;
    struct word words[3] = {text("SET"), {key, key_size}, {value, value_size}};
    return kvfs_call(store, words, 3, &reply);
}

int kvfs_get(kvfs *store, const void *key, size_t key_size, void **value, size_t *value_size) {
    struct reply reply;
    struct word words[2] = {text("GET"), {key, key_size}};
    int code = kvfs_call(store, words, 2, &reply);
    if (code != KVFS_OK)
        return code;
    if (reply.kind == 0)
        return KVFS_ABSENT;
    if (reply.kind != '$')
        return kvfs_lost(store);
    *value = reply.text;
    *value_size = reply.size;
    return KVFS_OK;
}

int kvfs_delete(kvfs *store, const void *key, size_t key_size) {
    struct reply reply;
    struct word words[2] = {text("DEL"), {key, key_size}};
    int code = kvfs_call(store, words, 2, &reply);
    return code != KVFS_OK ? code : reply.number > 0 ? KVFS_OK : KVFS_ABSENT;
}
