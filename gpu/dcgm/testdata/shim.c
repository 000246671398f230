/* A libdcgm.so.4 for tests: the calls that this package makes, against the
 * headers of go-dcgm, over a few imagined GPUs. What it does wrong stands in
 * the file that $WEIR_SHIM names, read anew at each call, one fault a line:
 *
 *   gpus N                 GPUs there are; default 2
 *   gone G                 GPU G is not listed
 *   mig G                  GPU G has two instances
 *   refuse E               connections and engines are refused with error E
 *   error E                every call fails with error E
 *   unreadable G E         GPU G and its instances cannot be read: error E
 *   hang NAME              the call NAME does not come back while this stands
 *   refuse-field G F       a watch of field F on GPU G is refused (G -1: all)
 *   value G I F TYPE X     what field F of GPU G reads, instance I (-1: the GPU)
 *   status G I F S         its status
 *   stamp G I F US         its time stamp; of an XID error else when the file
 *                          was written
 *   freeze                 time stamps stand still
 *   deaf                   watches that there are now stay blank for good
 *
 * Each call is written as a line to $WEIR_SHIM.log. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "dcgm_agent.h"
#include "dcgm_fields.h"
#include "dcgm_structs.h"

/* The layout that the Go side counts on. */
_Static_assert(sizeof(dcgmFieldValue_v1) == 4120, "size of a value");
_Static_assert(offsetof(dcgmFieldValue_v1, fieldId) == 4, "field");
_Static_assert(offsetof(dcgmFieldValue_v1, fieldType) == 6, "type");
_Static_assert(offsetof(dcgmFieldValue_v1, status) == 8, "status");
_Static_assert(offsetof(dcgmFieldValue_v1, ts) == 16, "time stamp");
_Static_assert(offsetof(dcgmFieldValue_v1, value) == 24, "value");
_Static_assert(DCGM_INT32_BLANK == 0x7ffffff0 && DCGM_INT64_BLANK == 0x7ffffffffffffff0 && DCGM_FP64_BLANK == 140737488355328.0, "blanks");
_Static_assert(DCGM_MAX_NUM_GROUPS == 64 && DCGM_MAX_NUM_FIELD_GROUPS == 64 && DCGM_MAX_NUM_DEVICES == 32, "rooms");

enum { WATCHES = 4096, MEMBERS = 16 };
static struct { int group, id; } members[64][MEMBERS];
static int membersOf[64], used[64];
static struct { unsigned short id[64]; int n; } sets[64];
static int nsets;
static struct { int group, set, live, deaf; } watches[WATCHES];
static int nwatches;

static int fault(const char *what, int a, int b, char *rest, size_t size) {
    char line[256], name[64];
    FILE *f = fopen(getenv("WEIR_SHIM"), "r");
    int found = 0;
    while (f && !found && fgets(line, sizeof line, f)) {
        int x = -2, y = -2, at = 0;
        if (sscanf(line, "%63s%n", name, &at) != 1 || strcmp(name, what)) continue;
        sscanf(line + at, "%d %d", &x, &y);
        if ((a == -2 || x == -1 || x == a) && (b == -2 || y == b)) {
            found = 1;
            if (rest) snprintf(rest, size, "%s", line + at);
        }
    }
    if (f) fclose(f);
    return found;
}

/* when the file of faults was written, in µs */
static long long written(void) {
    struct stat s;
    return stat(getenv("WEIR_SHIM"), &s) ? 0 : s.st_mtim.tv_sec * 1000000LL + s.st_mtim.tv_nsec / 1000;
}

static int number(const char *what, int otherwise) {
    char rest[256];
    return fault(what, -2, -2, rest, sizeof rest) ? atoi(rest) : otherwise;
}

static void record(const char *fmt, const char *a, int b, int c) {
    char path[512];
    snprintf(path, sizeof path, "%s.log", getenv("WEIR_SHIM"));
    FILE *f = fopen(path, "a");
    if (f) { fprintf(f, fmt, a, b, c); fputc('\n', f); fclose(f); }
}

static int enter(const char *call) {
    char rest[256], name[64];
    while (fault("hang", -2, -2, rest, sizeof rest) && sscanf(rest, "%63s", name) == 1 && !strcmp(name, call)) usleep(1000);
    if (fault("deaf", -2, -2, NULL, 0))
        for (int i = 0; i < nwatches; i++) watches[i].deaf = 1;
    return number("error", 0);
}

static void reset(void) { memset(used, 0, sizeof used); nsets = nwatches = 0; }

#define ENTER do { int e_ = enter(__func__); if (e_) return e_; } while (0)

const char *errorString(dcgmReturn_t r) {
    static __thread char text[64];
    snprintf(text, sizeof text, "shim error %d", r);
    return text;
}

dcgmReturn_t dcgmInit(void) { return DCGM_ST_OK; }
dcgmReturn_t dcgmShutdown(void) { record("%s", "shutdown", 0, 0); reset(); return DCGM_ST_OK; }

dcgmReturn_t dcgmStartEmbedded(dcgmOperationMode_t mode, dcgmHandle_t *h) {
    ENTER;
    record("%s %d", "embedded", mode, 0);
    *h = 1;
    reset();
    return number("refuse", 0);
}
dcgmReturn_t dcgmStopEmbedded(dcgmHandle_t h) { ENTER; record("%s", "stop", 0, 0); return DCGM_ST_OK; }

dcgmReturn_t dcgmConnect_v2(const char *address, dcgmConnectV2Params_t *p, dcgmHandle_t *h) {
    ENTER;
    if (p->version != dcgmConnectV2Params_version2) return DCGM_ST_VER_MISMATCH;
    record("connect %s %d", address, p->addressIsUnixSocket, 0);
    *h = 1;
    reset();
    return number("refuse", 0);
}
dcgmReturn_t dcgmDisconnect(dcgmHandle_t h) { ENTER; record("%s", "disconnect", 0, 0); return DCGM_ST_OK; }

dcgmReturn_t dcgmGetEntityGroupEntities(dcgmHandle_t h, dcgm_field_entity_group_t kind, dcgm_field_eid_t *list, int *n, unsigned flags) {
    ENTER;
    if (kind != DCGM_FE_GPU || *n < 32) return DCGM_ST_BADPARAM;
    *n = 0;
    for (int g = 0; g < number("gpus", 2); g++)
        if (!fault("gone", g, -2, NULL, 0)) list[(*n)++] = g;
    return DCGM_ST_OK;
}

dcgmReturn_t dcgmGetGpuInstanceHierarchy(dcgmHandle_t h, dcgmMigHierarchy_v2 *m) {
    ENTER;
    if (m->version != dcgmMigHierarchy_version2) return DCGM_ST_VER_MISMATCH;
    m->count = 0;
    for (int g = 0; g < number("gpus", 2); g++)
        for (int i = 0; i < 2 && fault("mig", g, -2, NULL, 0); i++) {
            dcgmMigHierarchyInfo_v2 *x = &m->entityList[m->count++];
            memset(x, 0, sizeof *x);
            x->entity.entityGroupId = DCGM_FE_GPU_I;
            x->entity.entityId = g * 100 + i;
            x->parent.entityGroupId = DCGM_FE_GPU;
            x->parent.entityId = g;
            x->info.nvmlInstanceId = 7 + i;
            x->info.nvmlProfileSlices = 4 - i;
            snprintf(x->info.gpuUuid, sizeof x->info.gpuUuid, "GPU-%d", g);
            x = &m->entityList[m->count++]; /* its compute instance */
            memset(x, 0, sizeof *x);
            x->entity.entityGroupId = DCGM_FE_GPU_CI;
            x->parent.entityGroupId = DCGM_FE_GPU_I;
            x->parent.entityId = g * 100 + i;
        }
    return DCGM_ST_OK;
}

dcgmReturn_t dcgmGroupCreate(dcgmHandle_t h, dcgmGroupType_t type, const char *name, dcgmGpuGrp_t *id) {
    ENTER;
    for (int i = 2; i < 64; i++)
        if (!used[i]) { used[i] = 1; membersOf[i] = 0; *id = i; return DCGM_ST_OK; }
    return DCGM_ST_MAX_LIMIT;
}
dcgmReturn_t dcgmGroupAddEntity(dcgmHandle_t h, dcgmGpuGrp_t g, dcgm_field_entity_group_t kind, dcgm_field_eid_t id) {
    ENTER;
    if (membersOf[g] == MEMBERS) return DCGM_ST_MAX_LIMIT;
    members[g][membersOf[g]].group = kind;
    members[g][membersOf[g]++].id = id;
    return DCGM_ST_OK;
}
dcgmReturn_t dcgmGroupDestroy(dcgmHandle_t h, dcgmGpuGrp_t g) { ENTER; used[g] = 0; return DCGM_ST_OK; }

dcgmReturn_t dcgmFieldGroupCreate(dcgmHandle_t h, int n, const unsigned short *ids, const char *name, dcgmFieldGrp_t *id) {
    ENTER;
    if (nsets == 64 || n > 64) return DCGM_ST_MAX_LIMIT;
    memcpy(sets[nsets].id, ids, n * sizeof *ids);
    sets[nsets].n = n;
    *id = nsets++;
    return DCGM_ST_OK;
}

static int gpuOf(int kind, int id) { return kind == DCGM_FE_GPU_I ? id / 100 : id; }

dcgmReturn_t dcgmWatchFields(dcgmHandle_t h, dcgmGpuGrp_t g, dcgmFieldGrp_t set, long long every, double age, int samples) {
    ENTER;
    for (int i = 0; i < sets[set].n; i++)
        for (int m = 0; m < membersOf[g]; m++)
            if (fault("refuse-field", gpuOf(members[g][m].group, members[g][m].id), sets[set].id[i], NULL, 0)) return DCGM_ST_NOT_SUPPORTED;
    if (nwatches == WATCHES) return DCGM_ST_MAX_LIMIT;
    record("%s %d fields every %d us", "watch", sets[set].n, (int)every);
    watches[nwatches].group = g;
    watches[nwatches].set = set;
    watches[nwatches].live = 1;
    watches[nwatches++].deaf = 0;
    return DCGM_ST_OK;
}
dcgmReturn_t dcgmUnwatchFields(dcgmHandle_t h, dcgmGpuGrp_t g, dcgmFieldGrp_t set) {
    ENTER;
    record("%s %d", "unwatch", set, 0);
    for (int i = 0; i < nwatches; i++)
        if (watches[i].group == g && watches[i].set == set) watches[i].live = 0;
    return DCGM_ST_OK;
}
dcgmReturn_t dcgmUpdateAllFields(dcgmHandle_t h, int wait) { ENTER; return DCGM_ST_OK; }

/* -1 not watched, 0 watched but blank, 1 watched */
static int watched(int kind, int id, unsigned short field) {
    int best = -1;
    for (int w = 0; w < nwatches; w++) {
        if (!watches[w].live) continue;
        for (int i = 0; i < sets[watches[w].set].n; i++) {
            if (sets[watches[w].set].id[i] != field) continue;
            for (int m = 0; m < membersOf[watches[w].group]; m++)
                if (members[watches[w].group][m].group == kind && members[watches[w].group][m].id == id && best < !watches[w].deaf) best = !watches[w].deaf;
        }
    }
    return best;
}

static void put(dcgmFieldValue_v1 *v, char type, double x) {
    v->fieldType = type;
    if (type == DCGM_FT_DOUBLE) v->value.dbl = x; else v->value.i64 = (long long)x;
}

#ifdef WITHOUT_READ /* an older library, without the call */
#define dcgmEntityGetLatestValues anotherName
#endif
dcgmReturn_t dcgmEntityGetLatestValues(dcgmHandle_t h, dcgm_field_entity_group_t kind, int id, unsigned short *fields, unsigned n, dcgmFieldValue_v1 *values) {
    ENTER;
    int g = gpuOf(kind, id), inst = kind == DCGM_FE_GPU_I ? id % 100 : -1;
    char rest[256];
    if (fault("unreadable", g, -2, rest, sizeof rest)) return atoi(strchr(rest + 1, ' '));
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    for (unsigned i = 0; i < n; i++) {
        dcgmFieldValue_v1 *v = &values[i];
        int f = fields[i], up = watched(kind, id, f);
        memset(v, 0, sizeof *v);
        v->version = dcgmFieldValue_version1;
        v->fieldId = f;
        v->ts = fault("freeze", -2, -2, NULL, 0) ? 1000 : now.tv_sec * 1000000LL + now.tv_nsec / 1000;
        if (up < 0) { v->status = DCGM_ST_NOT_WATCHED; continue; }
        switch (f) {
        case DCGM_FI_DEV_GPU_UUID: v->fieldType = DCGM_FT_STRING; snprintf(v->value.str, sizeof v->value.str, "GPU-%d", g); continue;
        case DCGM_FI_DEV_GPU_UTIL_RATIO: put(v, DCGM_FT_INT64, 40 + g); break;
        case DCGM_FI_DEV_FB_USED: put(v, DCGM_FT_INT64, inst < 0 ? 20480 : 4096); break;
        case DCGM_FI_DEV_FB_TOTAL: put(v, DCGM_FT_INT64, inst < 0 ? 81920 : 9728); break;
        case DCGM_FI_DEV_BOARD_POWER_WATTS: put(v, DCGM_FT_DOUBLE, 310.5); break;
        case DCGM_FI_DEV_GPU_TEMP_CELSIUS: put(v, DCGM_FT_INT64, 61); break;
        case DCGM_FI_DEV_CLOCKS_EVENT_REASONS: put(v, DCGM_FT_INT64, 4); break;
        case DCGM_FI_DEV_XID_ERROR: put(v, DCGM_FT_INT64, 0); v->ts = written(); break;
        case DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO: put(v, DCGM_FT_DOUBLE, 0.5); break;
        case DCGM_FI_PROF_SM_UTIL_RATIO: put(v, DCGM_FT_DOUBLE, inst < 0 ? 0.25 : 0.75); break;
        case DCGM_FI_PROF_SM_OCCUPANCY_RATIO: put(v, DCGM_FT_DOUBLE, inst < 0 ? 0.0625 : 0.1875); break;
        case DCGM_FI_PROF_TENSOR_UTIL_RATIO: put(v, DCGM_FT_DOUBLE, 0.125); break;
        case DCGM_FI_PROF_DRAM_UTIL_RATIO: put(v, DCGM_FT_DOUBLE, 0.375); break;
        case DCGM_FI_PROF_PCIE_TX_BYTES: put(v, DCGM_FT_INT64, 1e9); break;
        case DCGM_FI_PROF_PCIE_RX_BYTES: put(v, DCGM_FT_INT64, 2e9); break;
        case DCGM_FI_DEV_PCIE_TX_THROUGHPUT: put(v, DCGM_FT_INT64, 3e6); break;
        case DCGM_FI_DEV_PCIE_RX_THROUGHPUT: put(v, DCGM_FT_INT64, 4e6); break;
        default: v->status = DCGM_ST_UNKNOWN_FIELD; continue;
        }
        if (up == 0) { if (v->fieldType == DCGM_FT_DOUBLE) v->value.dbl = DCGM_FP64_BLANK; else v->value.i64 = DCGM_INT64_BLANK; }
        char line[256], what[32], type;
        int gi, ii, fi, s;
        long long stamp;
        FILE *file = fopen(getenv("WEIR_SHIM"), "r");
        while (file && fgets(line, sizeof line, file)) {
            char word[64];
            if (sscanf(line, "value %d %d %d %c %63s", &gi, &ii, &fi, &type, word) == 5 && gi == g && ii == inst && fi == f) {
                v->fieldType = type;
                if (type == DCGM_FT_DOUBLE) v->value.dbl = strtod(word, NULL); else v->value.i64 = strtoll(word, NULL, 0);
            } else if (sscanf(line, "stamp %d %d %d %lld", &gi, &ii, &fi, &stamp) == 4) {
                if (gi == g && ii == inst && fi == f) v->ts = stamp;
            } else if (sscanf(line, "%31s %d %d %d %d", what, &gi, &ii, &fi, &s) == 5 && !strcmp(what, "status") && gi == g && ii == inst && fi == f)
                v->status = s;
        }
        if (file) fclose(file);
    }
    return DCGM_ST_OK;
}
