/* Dictionaries and the options for the storage of their tuples. */
#define _GNU_SOURCE
#include "connection.h"

enum { MOST_OPTIONS = 32 };

static int with_options(kvfs *store, const char *what, const char *name,
                        const char *const *options) {
    struct word words[3 + 2 * MOST_OPTIONS] = {text("DICT"), text(what), text(name)};
    size_t count = 3;
    for (; options != NULL && options[0] != NULL; options += 2) {
        if (options[1] == NULL)
            return kvfs_fail(store, KVFS_ERROR, "option %s has no value", options[0]);
        if (count == sizeof words / sizeof *words - 1)
            return kvfs_fail(store, KVFS_ERROR, "there are more than %d options", MOST_OPTIONS - 1);
        words[count++] = text(options[0]);
        words[count++] = text(options[1]);
    }
    return kvfs_say(store, words, count);
}

int kvfs_dict_create(kvfs *store, const char *name, const char *const *options) {
    return with_options(store, "CREATE", name, options);
}

int kvfs_dict_set(kvfs *store, const char *name, const char *const *options) {
    return with_options(store, "SET", name, options);
}

int kvfs_dict_drop(kvfs *store, const char *name) {
    return with_options(store, "DROP", name, NULL);
}

int kvfs_compact(kvfs *store) {
    struct word words[1] = {text("COMPACT")};
    return kvfs_say(store, words, 1);
}
