/* Ids that nobody can guess. */
#ifndef SERVER_RANDOM_ID_H
#define SERVER_RANDOM_ID_H

#include "base/err.h"

enum { RANDOM_ID_BYTES = 33 };

/* 128 random bits, in hexadecimal. */
MUST_USE err_code random_id(char id[RANDOM_ID_BYTES], struct err *e);

#endif
