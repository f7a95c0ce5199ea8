/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sweep_scenes.h - scenes that are played once for each call of the driver in them, and this call fails; each time all
 * that the library does is compared with what it was seen to do.
 *
 * A scene is a function that calls the library and says the results. Its outcome is a text: the calls of the driver and
 * their words, what the log and the trace were told, how long was waited, the results. sweep/SCENE.txt has the whole
 * outcome of the scene where nothing fails, and a row (record.h) for each call: a digest of the outcome for each thing
 * that happens at this call, and, in words, what differs in the first of them from the outcome where nothing fails. Of
 * a row that is not as recorded the differences are printed, too.
 *
 * The test does not tell whether an outcome is right, beyond this: nothing crashes, hangs, waits without a limit, or
 * holds a lock over a call of the driver.
 *
 * Each play runs in a process of its own. Threads: a scene's own.
 */
#ifndef CUPOOL_TESTS_SHIM_SWEEP_H
#define CUPOOL_TESTS_SHIM_SWEEP_H

#include "isolated.h"

/* Another thread does this before one of the calls, in place of a failure of the call; and that before the call after
 * the next one, unless it is NULL. */
struct sweep_meanwhile {
    const char *name;
    void *(*begin)(void *arg);
    void *(*end)(void *arg);
    const char *never_at; /* calls of this function: the other thread would wait until they are over */
};
#define SWEEP_MEANWHILE 3

struct sweep_scene {
    const char *name, *environment;
    void (*play)(void);
    const struct sweep_meanwhile *meanwhile; /* SWEEP_MEANWHILE of them; NULL: none */
};

/* A scene registers itself; the rest is its environment. A file of scenes has a table sweep_meanwhile. */
#define SCENE(scene, words)                                                                                            \
    static void scene(void);                                                                                           \
    static const struct sweep_scene scene##_scene = {                                                                  \
        .name = #scene, .environment = (words), .play = (scene), .meanwhile = sweep_meanwhile};                        \
    static const struct sweep_scene *const scene##_place __attribute__((used, section("sweep_scenes"))) =              \
        &scene##_scene;                                                                                                \
    static void scene(void)

/* End a step of the scene: its line has what has happened since the last one, and these words. */
__attribute__((format(printf, 1, 2))) void sweep_say(const char *format, ...);
/* Calls from now on do not fail, and are not counted; or do so again. */
void sweep_count(bool counts);
/* For functions that are no driver's, such as NCCL's: true: the call fails. */
bool sweep_fails(const char *name);

#endif
