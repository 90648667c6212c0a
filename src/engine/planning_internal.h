/* What a plan is made of, for the files that implement it (planning*.c). */
#ifndef ENGINE_PLANNING_INTERNAL_H
#define ENGINE_PLANNING_INTERNAL_H

#include "base/bytes.h"
#include "engine/planning.h"
#include "moebius/moebius.h"
#include "planner/receipts.h"

struct moebius_plan {
    struct machine machine;   /* that the plan is for */
    struct plan_facts facts;  /* of the model; planning_facts_close */
    struct receipt *receipts; /* [n_receipt] by which the plan is calibrated; owned */
    size_t n_receipt;
    struct plan plan;
    struct bytes given;             /* plan_settings.given */
    char *text, *json, *line, *svg; /* the plan in these forms; owned */
};

/* ---- planning_machine.c ------------------------------------------------------------------------------------------ */

/* Notes what drivers give at present of the memory of GPUs that have their own. */
void planning_machine_vram(struct machine *m);

/* ---- planning_options.c ------------------------------------------------------------------------------------------ */

/* Refuses options that no model and no machine can have. */
MUST_USE err_code planning_check_options(const moebius_plan_options *o, struct err *e);
struct planning_facts_params planning_facts_params_of(const moebius_plan_options *o);
/* The settings that the options name, without those of a split, of what is found where, and of drives. */
struct plan_settings planning_settings_of(const moebius_plan *p, const moebius_plan_options *o);
/* All settings, for the model and the machine of the plan, whose facts must be known. */
MUST_USE err_code planning_take_options(const moebius_plan *p, const moebius_plan_options *o, struct plan_settings *s,
                                        struct err *e);

/* The options that change which model is run and where it is read, for struct plan_settings. */
MUST_USE err_code planning_put_given(struct bytes *out, const moebius_plan_options *o, struct err *e);

/* ---- planning.c -------------------------------------------------------------------------------------------------- */

/* Computes the plan and its texts. */
MUST_USE err_code planning_make(moebius_plan *p, const moebius_plan_options *o, const struct plan_settings *s,
                                struct err *e);

/* ---- planning_engine.c ------------------------------------------------------------------------------------------- */

/* Makes the plan of a running engine. */
MUST_USE err_code planning_of_engine(moebius_plan *p, const void *engine, const moebius_plan_options *o, struct err *e);

#endif
