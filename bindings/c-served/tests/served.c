/* Every call of libkvfs_served, on a store that the test serves:
 *
 *     served calls ADDRESS                of a store with the files and keys of the test
 *     served token ADDRESS FILE CA        over TLS, by the token in the file
 *     served gone ADDRESS                 says "ready", and waits until the server is gone
 *
 * Says "done" at the end. */
#include <kvfs_served.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define HOLDS(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "line %d: not so: %s\n", __LINE__, #what);                             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define IS(what, want)                                                                             \
    do {                                                                                           \
        int got_ = (what);                                                                         \
        if (got_ != (want)) {                                                                      \
            fprintf(stderr, "line %d: %s is %d: %s\n", __LINE__, #what, got_,                      \
                    kvfs_served_error(s));                                                         \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static int says(kvfs_served *s, const char *words) {
    return strstr(kvfs_served_error(s), words) != NULL;
}

static kvfs_served *opened(const char *address, const kvfs_served_options *options) {
    char why[512];
    kvfs_served *s = kvfs_served_open(address, options, why, sizeof why);
    if (s == NULL) {
        fprintf(stderr, "%s is not opened: %s\n", address, why);
        exit(1);
    }
    return s;
}

static void has(kvfs_served *s, const char *path, const char *content) {
    void *bytes;
    size_t size;
    IS(kvfs_served_read_file(s, path, &bytes, &size), KVFS_OK);
    HOLDS(size == strlen(content) && strcmp(bytes, content) == 0);
    free(bytes);
}

static void key_is(kvfs_served *s, const char *key, const char *want) {
    void *value;
    size_t size;
    int code = kvfs_served_get(s, key, strlen(key), &value, &size);
    if (want == NULL) {
        HOLDS(code == KVFS_ABSENT);
        return;
    }
    IS(code, KVFS_OK);
    HOLDS(size == strlen(want) && strcmp(value, want) == 0);
    free(value);
}

static void put(kvfs_served *s, const char *key, const char *value) {
    IS(kvfs_served_put(s, key, strlen(key), value, strlen(value)), KVFS_OK);
}

/* The keys of a range, each followed by its value or "-", separated by blanks. */
static void range_is(kvfs_served *s, const char *from, const char *to, unsigned flags,
                     const char *want) {
    kvfs_served_cursor *c;
    const void *key, *value;
    size_t key_size, value_size;
    char found[512] = "";
    int code;
    IS(kvfs_served_range(s, from, strlen(from), to, strlen(to), flags, &c), KVFS_OK);
    while ((code = kvfs_served_next(c, &key, &key_size, &value, &value_size)) == KVFS_OK) {
        size_t used = strlen(found);
        if (value == NULL)
            snprintf(found + used, sizeof found - used, "%.*s - ", (int)key_size,
                     (const char *)key);
        else
            snprintf(found + used, sizeof found - used, "%.*s %.*s ", (int)key_size,
                     (const char *)key, (int)value_size, (const char *)value);
    }
    IS(code, KVFS_ABSENT);
    kvfs_served_cursor_close(c);
    if (strcmp(found, want) != 0) {
        fprintf(stderr, "the range from '%s' to '%s' is: %s\n", from, to, found);
        exit(1);
    }
}

static void refuses_what_is_no_server(const char *address) {
    char why[256], little[8];
    HOLDS(kvfs_served_open("/tmp/store.kvfs", NULL, why, sizeof why) == NULL);
    HOLDS(strstr(why, "no address of a server") != NULL && strstr(why, "kvfs+unix:") != NULL);
    HOLDS(kvfs_served_open("kvfs://nohost", NULL, little, sizeof little) == NULL);
    HOLDS(strlen(little) == sizeof little - 1 && strncmp(little, "kvfs://", 7) == 0);
    HOLDS(kvfs_served_open(NULL, NULL, NULL, 0) == NULL);
    kvfs_served_options options = {.timeout = -1};
    HOLDS(kvfs_served_open(address, &options, why, sizeof why) == NULL);
    HOLDS(strstr(why, "timeout") != NULL);
}

static void reads_a_snapshot(kvfs_served *s) {
    char bytes[16];
    size_t got, count;
    kvfs_attributes a;
    kvfs_entry *entries;
    kvfs_txn t;
    /* Nothing is open. */
    IS(kvfs_served_stat(s, "/", 0, &a), KVFS_ERROR);
    HOLDS(says(s, "begin a transaction, or use a snapshot"));
    IS(kvfs_served_snapshot_use(s, "friday"), KVFS_ABSENT);
    HOLDS(says(s, "friday"));
    IS(kvfs_served_snapshot_use(s, "monday"), KVFS_OK);
    has(s, "/a/file1", "one");
    key_is(s, "apple", "red");
    IS(kvfs_served_read(s, "/a/file1", 1, bytes, sizeof bytes, &got), KVFS_OK);
    HOLDS(got == 2 && memcmp(bytes, "ne", 2) == 0);
    IS(kvfs_served_read(s, "/a/file1", 3, bytes, sizeof bytes, &got), KVFS_OK);
    HOLDS(got == 0);
    IS(kvfs_served_list(s, "/a", &entries, &count), KVFS_OK);
    HOLDS(count == 3 && strcmp(entries[0].name, "b") == 0 && S_ISDIR(entries[0].attributes.mode));
    HOLDS(strcmp(entries[1].name, "file1") == 0 && strcmp(entries[2].name, "file2") == 0);
    HOLDS(entries[1].attributes.size == 3 && S_ISREG(entries[1].attributes.mode));
    kvfs_served_entries_free(entries, count);
    IS(kvfs_served_list(s, "/a/b", &entries, &count), KVFS_OK);
    HOLDS(count == 0);
    kvfs_served_entries_free(entries, count);
    /* It does not change. */
    IS(kvfs_served_write_file(s, "/new", "x", 1), KVFS_ERROR);
    HOLDS(kvfs_served_errno(s) == EROFS);
    IS(kvfs_served_put(s, "apple", 5, "blue", 4), KVFS_ERROR);
    HOLDS(says(s, "snapshot"));
    /* It is no transaction either. */
    IS(kvfs_served_commit(s, 1, 0), KVFS_ENDED);
    IS(kvfs_served_abort(s, 1), KVFS_ENDED);
    IS(kvfs_served_snapshot_use(s, NULL), KVFS_OK);
    IS(kvfs_served_stat(s, "/", 0, &a), KVFS_ERROR);
    IS(kvfs_served_snapshot_use(s, "monday"), KVFS_OK);
    /* A transaction leaves it, and sees what came later. */
    IS(kvfs_served_begin(s, NULL, &t), KVFS_OK);
    has(s, "/a/file1", "one and more");
    key_is(s, "apple", "yellow");
    IS(kvfs_served_snapshot_use(s, "monday"), KVFS_ERROR);
    HOLDS(says(s, "commit or abort it first"));
    IS(kvfs_served_begin(s, NULL, &t), KVFS_ERROR);
    IS(kvfs_served_abort(s, t), KVFS_OK);
    IS(kvfs_served_abort(s, t), KVFS_ENDED);
}

static void writes_files(kvfs_served *s) {
    void *bytes;
    size_t size;
    kvfs_attributes a;
    char *large = malloc(3 << 20);
    HOLDS(large != NULL);
    memset(large, 'x', 3 << 20);
    IS(kvfs_served_mkdir(s, "/made", 0750), KVFS_OK);
    IS(kvfs_served_mkdir(s, "/made", 0750), KVFS_ERROR);
    HOLDS(kvfs_served_errno(s) == EEXIST && says(s, "/made: the name exists already"));
    IS(kvfs_served_stat(s, "/made", 0, &a), KVFS_OK);
    HOLDS(S_ISDIR(a.mode) && (a.mode & 07777) == 0750);
    IS(kvfs_served_write(s, "/made/file", 3, "def", 3), KVFS_OK);
    IS(kvfs_served_write(s, "/made/file", 0, "abc", 3), KVFS_OK);
    has(s, "/made/file", "abcdef");
    IS(kvfs_served_truncate(s, "/made/file", 4), KVFS_OK);
    has(s, "/made/file", "abcd");
    IS(kvfs_served_write_file(s, "/made/file", "ab", 2), KVFS_OK);
    has(s, "/made/file", "ab");
    IS(kvfs_served_write_file(s, "/made/empty", NULL, 0), KVFS_OK);
    has(s, "/made/empty", "");
    IS(kvfs_served_write_file(s, "/made/large", large, 3 << 20), KVFS_OK);
    IS(kvfs_served_read_file(s, "/made/large", &bytes, &size), KVFS_OK);
    HOLDS(size == 3 << 20 && memcmp(bytes, large, size) == 0);
    free(bytes);
    free(large);
    IS(kvfs_served_stat(s, "/made/large", KVFS_NOFOLLOW, &a), KVFS_OK);
    HOLDS(S_ISREG(a.mode) && (a.mode & 07777) == 0644 && a.size == 3 << 20 && a.mtime > 0);
    IS(kvfs_served_remove(s, "/made"), KVFS_ERROR);
    HOLDS(kvfs_served_errno(s) == ENOTEMPTY);
    IS(kvfs_served_remove(s, "/a/b"), KVFS_OK);
    IS(kvfs_served_remove(s, "/a/b"), KVFS_ABSENT);
    HOLDS(kvfs_served_errno(s) == ENOENT);
    IS(kvfs_served_remove(s, "/"), KVFS_ERROR);
    IS(kvfs_served_remove(s, "/a/."), KVFS_ERROR);
    IS(kvfs_served_rename(s, "/made/file", "/a/renamed"), KVFS_OK);
    has(s, "/a/renamed", "ab");
    IS(kvfs_served_rename(s, "/made/file", "/x"), KVFS_ABSENT);
    IS(kvfs_served_write_file(s, "/a/file2", "ab", 2), KVFS_OK);
    IS(kvfs_served_read_file(s, "/none/file", &bytes, &size), KVFS_ABSENT);
    IS(kvfs_served_read_file(s, "/a", &bytes, &size), KVFS_ERROR);
    HOLDS(kvfs_served_errno(s) == EISDIR);
    IS(kvfs_served_write(s, "/a/file1/x", 0, "x", 1), KVFS_ERROR);
    HOLDS(kvfs_served_errno(s) == ENOTDIR);
    IS(kvfs_served_stat(s, NULL, 0, &a), KVFS_ERROR);
    /* Symbolic links at the end of a path. */
    has(s, "/link", "one and more");
    IS(kvfs_served_stat(s, "/link", KVFS_NOFOLLOW, &a), KVFS_OK);
    HOLDS(S_ISLNK(a.mode));
    IS(kvfs_served_stat(s, "/link/", 0, &a), KVFS_ERROR);
    HOLDS(kvfs_served_errno(s) == ENOTDIR);
    IS(kvfs_served_stat(s, "/dir/", KVFS_NOFOLLOW, &a), KVFS_OK);
    HOLDS(S_ISDIR(a.mode));
    IS(kvfs_served_stat(s, "/dangling", 0, &a), KVFS_ABSENT);
    IS(kvfs_served_write_file(s, "/dangling", "by a link", 9), KVFS_OK);
    has(s, "/made/by-link", "by a link");
}

static void changes_keys(kvfs_served *s) {
    char *long_key = calloc(1, 1 << 20);
    HOLDS(long_key != NULL);
    put(s, "plum", "blue");
    put(s, "quince", "gold");
    range_is(s, "", "", 0, "apple yellow fig 7 plum blue quince gold ");
    range_is(s, "b", "q", 0, "fig 7 plum blue ");
    range_is(s, "", "", KVFS_REVERSE | KVFS_KEYS, "quince - plum - fig - apple - ");
    range_is(s, "q", "b", 0, "");
    IS(kvfs_served_delete(s, "fig", 3), KVFS_OK);
    IS(kvfs_served_delete(s, "fig", 3), KVFS_ABSENT);
    IS(kvfs_served_delete_range(s, "plum", 4, "q", 1), KVFS_OK);
    range_is(s, "", "", 0, "apple yellow quince gold ");
    IS(kvfs_served_put(s, long_key, 1 << 20, "x", 1), KVFS_ERROR);
    HOLDS(says(s, "a key has at most"));
    free(long_key);
    IS(kvfs_served_put(s, "k", (size_t)-1, "x", 1), KVFS_ERROR);
    HOLDS(kvfs_served_errno(s) == EINVAL);
    IS(kvfs_served_use(s, "imap"), KVFS_ERROR);
    HOLDS(says(s, "reserved"));
    IS(kvfs_served_use(s, ""), KVFS_ERROR);
    IS(kvfs_served_use(s, "none"), KVFS_OK);
    key_is(s, "apple", NULL);
    IS(kvfs_served_put(s, "a", 1, "1", 1), KVFS_ERROR);
    HOLDS(says(s, "none is made over a wire"));
    IS(kvfs_served_use(s, "fruit"), KVFS_OK);
}

static void refuses_what_is_closed(const char *address) {
    kvfs_served *s = opened(address, NULL), *o = opened(address, NULL);
    kvfs_served_cursor *c, *d;
    const void *key;
    size_t size;
    kvfs_attributes a;
    kvfs_txn t;
    char byte = 0;
    IS(kvfs_served_use(s, "fruit"), KVFS_OK);
    IS(kvfs_served_begin(s, NULL, &t), KVFS_OK);
    IS(kvfs_served_range(s, "", 0, "", 0, 0, &c), KVFS_OK);
    IS(kvfs_served_range(s, "", 0, "", 0, 0, &d), KVFS_OK);
    IS(kvfs_served_next(c, &key, &size, NULL, NULL), KVFS_OK);
    HOLDS(size == 5 && memcmp(key, "apple", 5) == 0);
    /* No memory has room for so many. */
    IS(kvfs_served_read(s, "/a/file1", 0, &byte, (size_t)-1, &size), KVFS_ERROR);
    HOLDS(kvfs_served_errno(s) == EINVAL && byte == 0);
    kvfs_served_cursor_close(d);
    IS(kvfs_served_next(d, &key, &size, NULL, NULL), KVFS_ERROR);
    kvfs_served_cursor_close(d);
    kvfs_served_close(s);
    IS(kvfs_served_next(c, &key, &size, NULL, NULL), KVFS_ERROR);
    IS(kvfs_served_stat(s, "/", 0, &a), KVFS_ERROR);
    HOLDS(says(s, "it is closed") && kvfs_served_errno(s) == EINVAL);
    IS(kvfs_served_commit(s, t, 0), KVFS_ERROR);
    kvfs_served_close(s);
    kvfs_served_cursor_close(c);
    /* A cursor is no connection, and the other connection stays open. */
    IS(kvfs_served_use((kvfs_served *)c, "fruit"), KVFS_ERROR);
    IS(kvfs_served_use(o, "fruit"), KVFS_OK);
    kvfs_served_close(o);
    IS(kvfs_served_use(NULL, "fruit"), KVFS_ERROR);
}

struct user {
    kvfs_served *store;
    int ended_well;
};

/* Uses a connection until another thread has closed it. */
static void *uses(void *given) {
    struct user *user = given;
    kvfs_attributes a;
    int code;
    while ((code = kvfs_served_stat(user->store, "/a/file1", 0, &a)) == KVFS_OK)
        ;
    user->ended_well = code == KVFS_ERROR && says(user->store, "it is closed");
    return NULL;
}

static void is_shared_by_threads(const char *address) {
    kvfs_served *s = opened(address, NULL);
    struct user users[2] = {{s, 0}, {s, 0}};
    pthread_t threads[2];
    kvfs_attributes a;
    kvfs_txn t;
    IS(kvfs_served_begin(s, NULL, &t), KVFS_OK);
    for (int i = 0; i < 2; i++)
        HOLDS(pthread_create(&threads[i], NULL, uses, &users[i]) == 0);
    for (int i = 0; i < 100; i++)
        IS(kvfs_served_stat(s, "/a/file1", 0, &a), KVFS_OK);
    kvfs_served_close(s);
    for (int i = 0; i < 2; i++) {
        HOLDS(pthread_join(threads[i], NULL) == 0);
        HOLDS(users[i].ended_well);
    }
}

static void calls(const char *address) {
    kvfs_served *s = opened(address, NULL), *o = opened(address, NULL);
    kvfs_txn t, u;
    refuses_what_is_no_server(address);
    IS(kvfs_served_use(s, "fruit"), KVFS_OK);
    IS(kvfs_served_use(o, "fruit"), KVFS_OK);
    /* After the snapshot was made. */
    IS(kvfs_served_begin(s, NULL, &t), KVFS_OK);
    IS(kvfs_served_write_file(s, "/a/file1", "one and more", 12), KVFS_OK);
    put(s, "apple", "yellow");
    IS(kvfs_served_commit(s, t, 0), KVFS_OK);
    reads_a_snapshot(s);
    IS(kvfs_served_begin(s, NULL, &t), KVFS_OK);
    writes_files(s);
    changes_keys(s);
    /* Others do not see it before it has committed. */
    IS(kvfs_served_begin(o, NULL, &u), KVFS_OK);
    HOLDS(u != t);
    void *bytes;
    size_t size;
    IS(kvfs_served_read_file(o, "/made/empty", &bytes, &size), KVFS_ABSENT);
    key_is(o, "quince", NULL);
    IS(kvfs_served_commit(s, t + 1000, 0), KVFS_ENDED);
    IS(kvfs_served_commit(s, t, KVFS_SYNC), KVFS_OK);
    IS(kvfs_served_commit(s, t, 0), KVFS_ENDED);
    IS(kvfs_served_read_file(o, "/made/empty", &bytes, &size), KVFS_ABSENT);
    /* Of two that change one file the second is in conflict, and begins again. */
    IS(kvfs_served_write_file(o, "/a/file2", "other", 5), KVFS_OK);
    IS(kvfs_served_commit(o, u, 0), KVFS_CONFLICT);
    HOLDS(strstr(kvfs_served_error(o), "file2") != NULL);
    IS(kvfs_served_commit(o, u, 0), KVFS_ENDED);
    IS(kvfs_served_begin(o, NULL, &u), KVFS_OK);
    has(o, "/a/file2", "ab");
    range_is(o, "", "", 0, "apple yellow quince gold ");
    IS(kvfs_served_write_file(o, "/a/file2", "later", 5), KVFS_OK);
    IS(kvfs_served_commit(o, u, 0), KVFS_OK);
    /* What is left open is thrown away. */
    IS(kvfs_served_begin(o, NULL, &u), KVFS_OK);
    IS(kvfs_served_write_file(o, "/left", "x", 1), KVFS_OK);
    kvfs_served_close(o);
    IS(kvfs_served_begin(s, NULL, &t), KVFS_OK);
    has(s, "/a/file2", "later");
    IS(kvfs_served_read_file(s, "/left", &bytes, &size), KVFS_ABSENT);
    kvfs_served_close(s);
    refuses_what_is_closed(address);
    is_shared_by_threads(address);
    kvfs_served_close(NULL);
}

static void by_token(const char *address, const char *file, const char *ca) {
    char why[512];
    kvfs_served_options options = {.ca = ca, .timeout = 20};
    kvfs_txn t;
    HOLDS(kvfs_served_open(address, &options, why, sizeof why) == NULL);
    HOLDS(strstr(why, "wants a token") != NULL);
    options.token = "another";
    HOLDS(kvfs_served_open(address, &options, why, sizeof why) == NULL);
    HOLDS(strstr(why, "another") == NULL);
    options.token = NULL;
    options.token_file = file;
    kvfs_served *s = opened(address, &options);
    IS(kvfs_served_begin(s, NULL, &t), KVFS_OK);
    has(s, "/a/file1", "one");
    IS(kvfs_served_write_file(s, "/by-token", "yes", 3), KVFS_OK);
    IS(kvfs_served_commit(s, t, KVFS_SYNC), KVFS_OK);
    /* The token does not let read this one. */
    IS(kvfs_served_snapshot_use(s, "tuesday"), KVFS_ERROR);
    HOLDS(kvfs_served_errno(s) == EACCES);
    kvfs_served_close(s);
}

static void outlives(const char *address) {
    kvfs_served_options options = {.timeout = 0.5, .label = "outlives"};
    kvfs_served *s = opened(address, &options);
    kvfs_txn t;
    IS(kvfs_served_begin(s, NULL, &t), KVFS_OK);
    IS(kvfs_served_write_file(s, "/lost", "x", 1), KVFS_OK);
    puts("ready");
    fflush(stdout);
    HOLDS(getchar() != EOF);
    /* Neither a signal ends the program nor does it wait for ever. */
    IS(kvfs_served_commit(s, t, 0), KVFS_LOST);
    HOLDS(says(s, "not to be reached"));
    IS(kvfs_served_commit(s, t, 0), KVFS_LOST);
    IS(kvfs_served_snapshot_use(s, "monday"), KVFS_ERROR);
    kvfs_served_close(s);
}

int main(int count, char **words) {
    if (count == 3 && strcmp(words[1], "calls") == 0)
        calls(words[2]);
    else if (count == 5 && strcmp(words[1], "token") == 0)
        by_token(words[2], words[3], words[4]);
    else if (count == 3 && strcmp(words[1], "gone") == 0)
        outlives(words[2]);
    else
        return 2;
    puts("done");
    return 0;
}
