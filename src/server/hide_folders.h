/* Failures as clients are told of them: files without their folders, which the log alone has. */
#ifndef SERVER_HIDE_FOLDERS_H
#define SERVER_HIDE_FOLDERS_H

#include "base/err.h"

/* model: the path of the model that the failure is of */
void hide_folders(const char *model, struct err *e);

#endif
