/* Removes folders from error messages before clients get them; only the log shows where files are. */
#ifndef SERVER_HIDE_FOLDERS_H
#define SERVER_HIDE_FOLDERS_H

#include "base/err.h"

/* Leaves the names of files in e->text, without their folders. model: the path of the model that failed. */
void hide_folders(const char *model, struct err *e);

#endif
