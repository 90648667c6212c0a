/* Whether a test runs with ThreadSanitizer, which takes ten times as long and watches where threads meet: loops over
 * models or settings in which they meet alike take some of them there. */
#ifndef FOR_THREADS_H
#define FOR_THREADS_H

#if defined(__SANITIZE_THREAD__)
enum { FOR_THREADS = 1 };
#else
enum { FOR_THREADS = 0 };
#endif

#endif
