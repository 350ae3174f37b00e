/* Several client processes at once on one file system: each creates, stats or unlinks its share of
 * the files in a directory of its own. Prints the seconds from the moment all of them may go until
 * the last has ended.
 *
 *     cc -O2 -o clients scripts/clients.c
 *     ./clients create|stat|unlink DIRECTORY CLIENTS FILES */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void step(const char *what, const char *path) {
    if (!strcmp(what, "create")) {
        int f = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (f < 0 || close(f)) fail(path);
    } else if (!strcmp(what, "stat")) {
        struct stat s;
        if (lstat(path, &s)) fail(path);
    } else if (unlink(path)) {
        fail(path);
    }
}

static void client(const char *what, const char *directory, int number, long files) {
    char path[4096];
    for (long n = 0; n < files; n++) {
        snprintf(path, sizeof path, "%s/client-%d/file-%06ld", directory, number, n);
        step(what, path);
    }
}

int main(int argc, char **argv) {
    if (argc != 5 ||
        (strcmp(argv[1], "create") && strcmp(argv[1], "stat") && strcmp(argv[1], "unlink"))) {
        fprintf(stderr, "clients create|stat|unlink DIRECTORY CLIENTS FILES\n");
        return 2;
    }
    int clients = atoi(argv[3]), ready[2], gate[2];
    long files = atol(argv[4]) / (clients > 0 ? clients : 1);
    if (clients < 1 || files < 1 || pipe(ready) || pipe(gate)) fail("clients");
    for (int n = 0; n < clients; n++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/client-%d", argv[2], n);
        if (mkdir(path, 0755) && errno != EEXIST) fail(path);
        pid_t pid = fork();
        if (pid < 0) fail("fork");
        if (pid == 0) {
            char byte = 0;
            close(gate[1]);
            if (write(ready[1], &byte, 1) != 1) fail("ready");
            /* Returns at the end of the pipe: when the parent lets all go. */
            if (read(gate[0], &byte, 1) != 0) fail("gate");
            client(argv[1], argv[2], n, files);
            _exit(0);
        }
    }
    for (int n = 0; n < clients; n++) {
        char byte;
        if (read(ready[0], &byte, 1) != 1) fail("ready");
    }
    double begun = now();
    close(gate[1]);
    int failed = 0, status;
    while (wait(&status) > 0) failed |= status;
    if (failed) return 1;
    printf("%.9f\n", now() - begun);
    return 0;
}
