/* SPDX-License-Identifier: Apache-2.0 */
/*
 * objects.h - the objects (program and libraries) that frames of stacks lie in. Each is written once (event `object`)
 * with its path, build id and load bias, so that readers find the file that it was, and then named by a number.
 *
 * It follows no dlclose: an object that is loaded where another one was has the number of the first.
 *
 * Threads: any thread. No locks: two threads may need a number at once, and its event may come after the first frame
 * that names it.
 */
#ifndef CUPOOL_SHIM_TRACE_OBJECTS_H
#define CUPOOL_SHIM_TRACE_OBJECTS_H

/* The number of the object that holds an address, after its event if it is new. 0: none holds it, or there are no more
 * numbers. */
unsigned int objects_number(const void *address);

#endif
