/* SPDX-License-Identifier: Apache-2.0 */
/* host.c - a program that has nothing to do with CUDA until it loads a plugin: host FLAGS PLUGIN COMMAND... FLAGS are
 * letters: l RTLD_LOCAL, g RTLD_GLOBAL, d RTLD_DEEPBIND, z RTLD_LAZY (else RTLD_NOW). Commands: see app.c. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    int flags = 0, (*run)(int, char **);
    void *plugin;

    if (argc < 3)
        return 5;
    flags |= strchr(argv[1], 'g') ? RTLD_GLOBAL : RTLD_LOCAL;
    flags |= strchr(argv[1], 'd') ? RTLD_DEEPBIND : 0;
    flags |= strchr(argv[1], 'z') ? RTLD_LAZY : RTLD_NOW;
    plugin = dlopen(argv[2], flags);
    if (!plugin) {
        printf("%s\n", dlerror());
        return 5;
    }
    *(void **)&run = dlsym(plugin, "plugin_run");
    return run ? run(argc - 2, argv + 2) : 5;
}
