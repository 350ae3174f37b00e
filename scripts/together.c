/* A file of 4 KiB and a value that belongs to it, made durable together,
 * over and over by N clients:
 *
 *     together kvfs MOUNT SOCKET CLIENTS SECONDS
 *         the file in the view of a transaction, the key through the socket, TXN COMMIT SYNC;
 *     together ext4 DIRECTORY CLIENTS SECONDS
 *         write to a new file, fsync, rename over the old one, fsync of the directory; then a row
 *         in SQLite (WAL, synchronous=FULL), one commit each. Killed between the two, they do not
 *         fit together.
 *
 * Each client is a process with a directory of its own and goes through 100 names. Prints how many
 * were done in a second. */

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NAMES 100

static char data[4096];

static void die(const char *what) {
    fprintf(stderr, "together: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void write_file(const char *path, int durable) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || write(fd, data, sizeof data) != sizeof data) die(path);
    if (durable && fsync(fd)) die("fsync");
    if (close(fd)) die("close");
}

/* --- KVFS --- */

static int dial(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) die(path);
    return fd;
}

/* Sends commands and waits for as many replies, each a line; the last one is left in `reply`. */
static void ask(int fd, const char *commands, int replies, char *reply, size_t room) {
    size_t len = strlen(commands), have = 0;
    if (write(fd, commands, len) != (ssize_t)len) die("socket");
    for (;;) {
        ssize_t got = read(fd, reply + have, room - have - 1);
        if (got <= 0) die("socket");
        have += got;
        reply[have] = 0;
        int lines = 0;
        for (char *at = reply; (at = strchr(at, '\n')); at++) lines++;
        if (reply[0] == '-' || strstr(reply, "\n-")) {
            fprintf(stderr, "together: %s", reply);
            exit(1);
        }
        if (lines >= replies) return;
    }
}

static void kvfs_client(const char *mount, const char *socket, int me, double until, long *done) {
    char path[4096], command[512], reply[512];
    int fd = dial(socket);
    while (now() < until) {
        ask(fd, "TXN BEGIN\r\n", 1, reply, sizeof reply);
        long id = strtol(reply + 1, NULL, 10);
        snprintf(path, sizeof path, "%s/.kvfs/txn/%ld/together%d/f%ld", mount, id, me,
                 *done % NAMES);
        write_file(path, 0);
        snprintf(command, sizeof command,
                 "TXN JOIN %ld\r\nSET together:%d:%ld value-%ld\r\n"
                 "TXN COMMIT SYNC\r\nTXN LEAVE\r\n",
                 id, me, *done % NAMES, *done);
        ask(fd, command, 4, reply, sizeof reply);
        ++*done;
    }
}

/* --- ext4 and SQLite --- */

static sqlite3 *database(const char *directory) {
    char path[4096];
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/rows.db", directory);
    if (sqlite3_open(path, &db)) die("sqlite3_open");
    sqlite3_busy_timeout(db, 60000);
    const char *setup = "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; "
                        "CREATE TABLE IF NOT EXISTS t(k TEXT PRIMARY KEY, v TEXT) WITHOUT ROWID;";
    if (sqlite3_exec(db, setup, NULL, NULL, NULL)) {
        fprintf(stderr, "together: %s\n", sqlite3_errmsg(db));
        exit(1);
    }
    return db;
}

static void ext4_client(const char *directory, int me, double until, long *done) {
    char dir[2048], path[4096], fresh[4096], key[64], value[64];
    sqlite3 *db = database(directory);
    sqlite3_stmt *put;
    if (sqlite3_prepare_v2(db, "INSERT OR REPLACE INTO t VALUES (?, ?)", -1, &put, NULL))
        die(sqlite3_errmsg(db));
    snprintf(dir, sizeof dir, "%s/together%d", directory, me);
    int dirfd = open(dir, O_RDONLY | O_DIRECTORY);
    while (now() < until) {
        snprintf(path, sizeof path, "%s/f%ld", dir, *done % NAMES);
        snprintf(fresh, sizeof fresh, "%s/new", dir);
        write_file(fresh, 1);
        if (rename(fresh, path) || fsync(dirfd)) die(path);
        snprintf(key, sizeof key, "together:%d:%ld", me, *done % NAMES);
        snprintf(value, sizeof value, "value-%ld", *done);
        sqlite3_bind_text(put, 1, key, -1, SQLITE_STATIC);
        sqlite3_bind_text(put, 2, value, -1, SQLITE_STATIC);
        if (sqlite3_step(put) != SQLITE_DONE) die(sqlite3_errmsg(db));
        sqlite3_reset(put);
        ++*done;
    }
}

int main(int argc, char **argv) {
    int kvfs = argc == 6 && !strcmp(argv[1], "kvfs");
    if (!kvfs && !(argc == 5 && !strcmp(argv[1], "ext4"))) {
        fprintf(stderr, "together kvfs MOUNT SOCKET CLIENTS SECONDS | "
                        "together ext4 DIRECTORY CLIENTS SECONDS\n");
        return 2;
    }
    const char *directory = argv[2];
    int clients = atoi(argv[argc - 2]), failed = 0;
    double seconds = atof(argv[argc - 1]);
    if (clients < 1) return 2;
    memset(data, 'x', sizeof data);
    for (int me = 0; me < clients; me++) {
        char dir[4096];
        snprintf(dir, sizeof dir, "%s/together%d", directory, me);
        if (mkdir(dir, 0755) && errno != EEXIST) die(dir);
    }
    if (!kvfs) sqlite3_close(database(directory));
    long *done = mmap(NULL, clients * sizeof *done, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (done == MAP_FAILED) die("mmap");
    double begun = now();
    for (int me = 0; me < clients; me++) {
        if (fork()) continue;
        if (kvfs) kvfs_client(directory, argv[3], me, begun + seconds, done + me);
        else ext4_client(directory, me, begun + seconds, done + me);
        _exit(0);
    }
    for (int status; wait(&status) > 0;) failed |= status;
    double took = now() - begun, all = 0;
    for (int me = 0; me < clients; me++) all += done[me];
    if (failed) return 1;
    printf("%.1f\n", all / took);
    return 0;
}
