/* Runs a fuzz target on every file of the folders named as arguments, so that the corpus is a test that needs
 * no libFuzzer. Fails when a folder cannot be read or there was nothing to run. */
#include "fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Runs one file; returns 1 when it could not be read. */
static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = NULL;
    long n = -1;
    if (f && fseek(f, 0, SEEK_END) == 0)
        n = ftell(f);
    if (n >= 0)
        data = malloc(n ? (size_t)n : 1); /* of the very size: the address sanitizer sees what goes beyond */
    int bad = !data || fseek(f, 0, SEEK_SET) != 0 || fread(data, 1, (size_t)n, f) != (size_t)n;
    if (bad)
        fprintf(stderr, "%s: cannot be read\n", path);
    else
        (void)LLVMFuzzerTestOneInput(data, (size_t)n);
    free(data);
    if (f)
        fclose(f);
    return bad;
}

int main(int argc, char **argv)
{
    int n_run = 0, n_bad = 0;
    for (int i = 1; i < argc; i++) {
        DIR *d = opendir(argv[i]);
        if (!d) {
            fprintf(stderr, "%s: %s\n", argv[i], strerror(errno));
            return 1;
        }
        for (struct dirent *entry; (entry = readdir(d));) {
            char path[4096];
            if (entry->d_name[0] == '.')
                continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
            n_bad += replay_file(path);
            n_run++;
        }
        closedir(d);
    }
    printf("%d inputs\n", n_run);
    return n_run == 0 || n_bad > 0;
}
