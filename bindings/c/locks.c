/* Locks that a serializable transaction takes on keys or directories before it uses them. */
#define _GNU_SOURCE
#include "connection.h"

/* Sends `TXN LOCK` with the locked object, which is one word or two. */
static int lock(kvfs *store, const char *kind, const struct word *what, size_t count,
                unsigned flags) {
    struct word words[6] = {text("TXN"), text("LOCK"), text(kind)};
    size_t all = 3;
    for (size_t i = 0; i < count; i++)
        words[all++] = what[i];
    if (flags & KVFS_SHARED)
        words[all++] = text("SHARED");
    return kvfs_say(store, words, all);
}

int kvfs_lock_key(kvfs *store, const void *key, size_t key_size, unsigned flags) {
    struct word what[1] = {{key, key_size}};
    return lock(store, "KEY", what, 1, flags);
}

int kvfs_lock_range(kvfs *store, const void *from, size_t from_size, const void *to, size_t to_size,
                    unsigned flags) {
    struct word what[2] = {{from, from_size}, {to, to_size}};
    return lock(store, "RANGE", what, 2, flags);
}

int kvfs_lock_dir(kvfs *store, const char *path, unsigned flags) {
    struct word what[1] = {text(path)};
    return lock(store, "DIR", what, 1, flags);
}
