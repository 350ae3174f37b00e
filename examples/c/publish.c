/* Publishes a page: the file and the key that tells which version it is change together,
 * or not at all.
 *
 *     cc publish.c $(pkg-config --cflags --libs libkvfs) -o publish
 *     ./publish /mnt index.html "<h1>Hello</h1>"
 */
#include <errno.h>
#include <kvfs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Programs and libraries that know nothing of transactions do this part as they always did. */
static int write_page(const char *path, const char *text) {
    FILE *page = fopen(path, "w");
    if (page == NULL)
        return -1;
    int written = fputs(text, page) == EOF || fputc('\n', page) == EOF;
    return fclose(page) != 0 || written ? -1 : 0;
}

static int attempt(kvfs *store, kvfs_txn txn, const char *path, const char *name,
                   const char *text) {
    char version[24];
    void *old = NULL;
    size_t size;
    int code = kvfs_enter(store, txn, 0);
    if (code != KVFS_OK)
        return code;
    if (write_page(path, text) != 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return KVFS_ERROR;
    }
    code = kvfs_get(store, name, strlen(name), &old, &size);
    if (code < 0)
        return code;
    snprintf(version, sizeof version, "%d", old != NULL ? atoi(old) + 1 : 1);
    free(old);
    code = kvfs_put(store, name, strlen(name), version, strlen(version));
    return code != KVFS_OK ? code : kvfs_commit(store, txn, KVFS_SYNC);
}

int main(int count, char **words) {
    if (count != 4) {
        fprintf(stderr, "usage: %s MOUNT NAME TEXT\n", words[0]);
        return 2;
    }
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", words[1], words[2]);
    kvfs *store = kvfs_open(words[1]);
    if (store == NULL) {
        fprintf(stderr, "%s: %s\n", words[1], strerror(errno));
        return 1;
    }
    int code = kvfs_use(store, "versions");
    for (int tries = 0; code == KVFS_OK && tries < 100; tries++) {
        kvfs_txn txn;
        /* Attached: should this program die, the transaction goes with it. */
        if ((code = kvfs_begin(store, KVFS_SI, KVFS_ATTACHED, &txn)) != KVFS_OK)
            break;
        code = attempt(store, txn, path, words[2], words[3]);
        if (code == KVFS_OK)
            break;
        char why[512];
        snprintf(why, sizeof why, "%s", kvfs_error(store));
        kvfs_abort(store, txn);
        if (code != KVFS_CONFLICT && code != KVFS_LOCKED) {
            fprintf(stderr, "nothing was changed: %s\n", why);
            break;
        }
        /* Another program was there first: once more, from what is there now. */
        code = KVFS_OK;
    }
    kvfs_close(store);
    return code == KVFS_OK ? 0 : 1;
}
