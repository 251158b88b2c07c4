/* Three ops for TensorFlow, against its C API: a library of its own, which tf.load_op_library()
 * opens.
 *
 * It is compiled without TensorFlow and linked against nothing: what it calls, it looks up in the
 * TensorFlow that has opened it (the declarations are those of
 * tensorflow/c/{ops,kernels,tf_tensor,tf_status}.h, unchanged since 2.4). Where something is
 * missing it registers nothing, and ringfeed falls back to Python.
 *
 *   RingfeedEpoch  state, step -> the epoch id of this iteration: its state, or, if that is negative, the id of a new
 *                  epoch or of the rest of one (feed.h); and whether its next batch is still to be waited for
 *   RingfeedWait   epoch_id -> the same after a little while. A loop in TensorFlow's graph calls it again, and ends
 *                  when TensorFlow has cancelled the iteration, of which an op against the C API is not told.
 *   RingfeedBatch  epoch_id -> the next batch of its epoch, over the slot's memory, which its tensors hold. With one
 *                  output more than a batch has leaves, the first says whether there was one: at the end of the epoch
 *                  come false and tensors without content, instead of an error.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "export/feed.h"

#define PUBLIC __attribute__((visibility("default")))
#define FRAMEWORK "libtensorflow_framework.so.2"

typedef struct TF_Status TF_Status;
typedef struct TF_Tensor TF_Tensor;
typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
typedef struct TF_KernelBuilder TF_KernelBuilder;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_OpKernelContext TF_OpKernelContext;

enum { TF_OK = 0, TF_UNKNOWN = 2, TF_INVALID_ARGUMENT = 3, TF_BOOL = 10, TF_INT64 = 9 };

static struct {
    TF_Status *(*NewStatus)(void);
    void (*DeleteStatus)(TF_Status *);
    void (*SetStatus)(TF_Status *, int code, const char *text);
    int (*GetCode)(const TF_Status *);
    TF_Tensor *(*NewTensor)(int type, const int64_t *shape, int axes, void *memory, size_t size,
                            void (*let_go)(void *memory, size_t size, void *argument),
                            void *argument);
    TF_Tensor *(*AllocateTensor)(int type, const int64_t *shape, int axes, size_t size);
    void (*DeleteTensor)(TF_Tensor *);
    void *(*TensorData)(const TF_Tensor *);
    size_t (*TensorByteSize)(const TF_Tensor *);
    TF_OpDefinitionBuilder *(*NewOpDefinitionBuilder)(const char *name);
    void (*OpDefinitionBuilderAddAttr)(TF_OpDefinitionBuilder *, const char *);
    void (*OpDefinitionBuilderAddInput)(TF_OpDefinitionBuilder *, const char *);
    void (*OpDefinitionBuilderAddOutput)(TF_OpDefinitionBuilder *, const char *);
    void (*OpDefinitionBuilderSetIsStateful)(TF_OpDefinitionBuilder *, bool);
    void (*OpDefinitionBuilderSetShapeInferenceFunction)(TF_OpDefinitionBuilder *,
                                                         void (*)(TF_ShapeInferenceContext *,
                                                                  TF_Status *));
    void (*ShapeInferenceContextSetUnknownShape)(TF_ShapeInferenceContext *, TF_Status *);
    void (*RegisterOpDefinition)(TF_OpDefinitionBuilder *, TF_Status *);
    TF_KernelBuilder *(*NewKernelBuilder)(const char *op, const char *device,
                                          void *(*create)(TF_OpKernelConstruction *),
                                          void (*compute)(void *, TF_OpKernelContext *),
                                          void (*destroy)(void *));
    void (*RegisterKernelBuilder)(const char *name, TF_KernelBuilder *, TF_Status *);
    void (*OpKernelConstruction_GetAttrInt64)(TF_OpKernelConstruction *, const char *name,
                                              int64_t *, TF_Status *);
    void (*OpKernelConstruction_Failure)(TF_OpKernelConstruction *, TF_Status *);
    int (*NumOutputs)(TF_OpKernelContext *);
    int (*ExpectedOutputDataType)(TF_OpKernelContext *, int output);
    void (*GetInput)(TF_OpKernelContext *, int input, TF_Tensor **, TF_Status *);
    void (*SetOutput)(TF_OpKernelContext *, int output, const TF_Tensor *, TF_Status *);
    void (*OpKernelContext_Failure)(TF_OpKernelContext *, TF_Status *);
} TF;

static const struct rf_feed_calls *calls; /* of the ringfeed in this process */
static char why_not[256] = "its library was not opened by TensorFlow";

/* ---- kernels ---- */

struct kernel {
    uint64_t feed;
};

static void *create(TF_OpKernelConstruction *construction)
{
    TF_Status *status = TF.NewStatus();
    struct kernel *kernel = malloc(sizeof *kernel);
    int64_t number = 0;
    TF.OpKernelConstruction_GetAttrInt64(construction, "feed", &number, status);
    if (TF.GetCode(status) != TF_OK)
        TF.OpKernelConstruction_Failure(construction, status);
    if (kernel)
        kernel->feed = (uint64_t)number;
    TF.DeleteStatus(status);
    return kernel;
}

static void destroy(void *kernel) { free(kernel); }

static void fail(TF_OpKernelContext *context, TF_Status *status, const char *text)
{
    if (text)
        TF.SetStatus(status, TF_UNKNOWN, text);
    TF.OpKernelContext_Failure(context, status);
}

static void fail_with(TF_OpKernelContext *context, TF_Status *status, char *error)
{
    fail(context, status, error ? error : "out of memory");
    free(error);
}

/* An input, which is a number. */
static bool read_input(TF_OpKernelContext *context, TF_Status *status, int input, int64_t *number)
{
    TF_Tensor *tensor;
    TF.GetInput(context, input, &tensor, status);
    if (TF.GetCode(status) != TF_OK)
        return false;
    bool is_number = TF.TensorByteSize(tensor) == sizeof *number;
    if (is_number)
        memcpy(number, TF.TensorData(tensor), sizeof *number);
    else
        TF.SetStatus(status, TF_INVALID_ARGUMENT,
                     "ValueError: an input of ringfeed's op is no single int64");
    TF.DeleteTensor(tensor);
    return is_number;
}

/* Hand a tensor to TensorFlow, if there is one. */
static bool put(TF_OpKernelContext *context, TF_Status *status, int output, TF_Tensor *tensor)
{
    if (!tensor) {
        TF.SetStatus(status, TF_UNKNOWN, "no memory for a tensor");
        return false;
    }
    TF.SetOutput(context, output, tensor, status);
    TF.DeleteTensor(tensor);
    return TF.GetCode(status) == TF_OK;
}

static TF_Tensor *scalar(int type, const void *value, size_t size)
{
    TF_Tensor *tensor = TF.AllocateTensor(type, NULL, 0, size);
    if (tensor)
        memcpy(TF.TensorData(tensor), value, size);
    return tensor;
}

/* Wait a little for the next batch of this epoch, and put out whether it is still to
 * be waited for. */
static void wait_and_put(struct kernel *kernel, TF_OpKernelContext *context, TF_Status *status,
                         int64_t epoch_id, int output)
{
    char *error = NULL;
    enum rf_reply reply = calls->wait(kernel->feed, epoch_id, &error);
    bool waits = reply == RF_REPLY_LATER;
    if (reply == RF_REPLY_ERROR)
        fail_with(context, status, error);
    else if (!put(context, status, output, scalar(TF_BOOL, &waits, sizeof waits)))
        fail(context, status, NULL);
}

static void compute_epoch(void *kernel, TF_OpKernelContext *context)
{
    TF_Status *status = TF.NewStatus();
    int64_t state, step, epoch_id;
    char *error = NULL;
    if (!kernel || !read_input(context, status, 0, &state) ||
        !read_input(context, status, 1, &step))
        fail(context, status, kernel ? NULL : "out of memory");
    else if (calls->begin(((struct kernel *)kernel)->feed, state, step, &epoch_id, &error) !=
             RF_REPLY_BATCH)
        fail_with(context, status, error);
    else if (!put(context, status, 0, scalar(TF_INT64, &epoch_id, sizeof epoch_id)))
        fail(context, status, NULL);
    else
        wait_and_put(kernel, context, status, epoch_id, 1);
    TF.DeleteStatus(status);
}

static void compute_wait(void *kernel, TF_OpKernelContext *context)
{
    TF_Status *status = TF.NewStatus();
    int64_t epoch_id;
    if (!kernel || !read_input(context, status, 0, &epoch_id))
        fail(context, status, kernel ? NULL : "out of memory");
    else
        wait_and_put(kernel, context, status, epoch_id, 0);
    TF.DeleteStatus(status);
}

static TF_Tensor *tensor_of(const struct rf_handout *handout, const struct rf_part *part, int type)
{
    int64_t shape[RF_MAX_AXES + 1] = {handout->rows};
    memcpy(shape + 1, part->shape, (size_t)part->axes * sizeof *shape);
    uint8_t *memory = handout->base + part->offset;
    size_t size = handout->rows * part->row_size;
    if (!handout->ring || handout->copy) {
        TF_Tensor *tensor = TF.AllocateTensor(type, shape, part->axes + 1, size);
        if (tensor && handout->ring)
            memcpy(TF.TensorData(tensor), memory, size);
        return tensor;
    }
    void *hold = calls->hold(handout);
    return hold ? TF.NewTensor(type, shape, part->axes + 1, memory, size, calls->let_go, hold)
                : NULL;
}

/* Whether the op was asked for the types of the leaves, or for the flag and these: memory is handed
 * out as what it is asked for. */
static bool check_types(TF_OpKernelContext *context, TF_Status *status, struct rf_feed *feed)
{
    char text[128];
    int leaves = (int)calls->parts(feed), outputs = TF.NumOutputs(context),
        first = outputs - leaves;
    if (first != 0 && first != 1) {
        snprintf(text, sizeof text,
                 "ValueError: types has %d, expected %d of the leaves, or one more", outputs,
                 leaves);
        TF.SetStatus(status, TF_INVALID_ARGUMENT, text);
        return false;
    }
    for (int output = 0; output < outputs; output++) {
        int expected =
            output < first ? TF_BOOL : calls->part(feed, (uint32_t)(output - first))->type;
        int type = (int)TF.ExpectedOutputDataType(context, output);
        if (type != expected) {
            snprintf(text, sizeof text, "ValueError: types[%d] is DataType %d, expected %d", output,
                     type, expected);
            TF.SetStatus(status, TF_INVALID_ARGUMENT, text);
            return false;
        }
    }
    return true;
}

/* A tensor a leaf, after the flag if there is one. Those at the end have the shape of a full batch,
 * which the graph may check. */
static void put_batch(TF_OpKernelContext *context, TF_Status *status,
                      const struct rf_handout *handout)
{
    int leaves = (int)calls->parts(handout->feed), first = TF.NumOutputs(context) - leaves;
    bool goes_on = handout->ring != NULL;
    if (!goes_on && first == 0) {
        fail(context, status,
             "RingfeedError: the epoch is over, and types has no flag that says so");
        return;
    }
    bool fine = first == 0 || put(context, status, 0, scalar(TF_BOOL, &goes_on, sizeof goes_on));
    for (int leaf = 0; fine && leaf < leaves; leaf++) {
        int type = TF.ExpectedOutputDataType(context, first + leaf);
        const struct rf_part *part = calls->part(handout->feed, (uint32_t)leaf);
        fine = put(context, status, first + leaf, tensor_of(handout, part, type));
    }
    if (!fine)
        fail(context, status, NULL);
}

static void compute_batch(void *kernel, TF_OpKernelContext *context)
{
    TF_Status *status = TF.NewStatus();
    struct rf_handout handout;
    int64_t epoch_id = -1;
    char *error = NULL;
    if (!kernel || !read_input(context, status, 0, &epoch_id)) {
        fail(context, status, kernel ? NULL : "out of memory");
    } else if (calls->next(((struct kernel *)kernel)->feed, epoch_id, &handout, &error) ==
               RF_REPLY_ERROR) {
        fail_with(context, status, error);
    } else {
        if (check_types(context, status, handout.feed))
            put_batch(context, status, &handout);
        else
            fail(context, status, NULL);
        calls->done(&handout);
    }
    TF.DeleteStatus(status);
}

/* ---- registration ---- */

static void infer_nothing(TF_ShapeInferenceContext *context, TF_Status *status)
{
    TF.ShapeInferenceContextSetUnknownShape(context, status);
}

static bool is_fine(TF_Status *status, const char *what)
{
    if (TF.GetCode(status) == TF_OK)
        return true;
    snprintf(why_not, sizeof why_not, "TensorFlow does not take %s", what);
    return false;
}

/* What an op looks like: each list ends with NULL. */
struct form {
    const char *name, *inputs[3], *outputs[3], *types;
    void (*compute)(void *, TF_OpKernelContext *);
};

static const struct form FORMS[] = {
    {"RingfeedEpoch",
     {"state: int64", "step: int64"},
     {"epoch_id: int64", "waits: bool"},
     NULL,
     compute_epoch},
    {"RingfeedWait", {"epoch_id: int64"}, {"waits: bool"}, NULL, compute_wait},
    {"RingfeedBatch",
     {"epoch_id: int64"},
     {"leaves: types"},
     "types: list(type) >= 1",
     compute_batch},
};

static bool add_op(const struct form *form, TF_Status *status)
{
    const char *name = form->name;
    TF_OpDefinitionBuilder *op = TF.NewOpDefinitionBuilder(name);
    TF.OpDefinitionBuilderAddAttr(op, "feed: int");
    if (form->types)
        TF.OpDefinitionBuilderAddAttr(op, form->types);
    for (const char *const *input = form->inputs; *input; input++)
        TF.OpDefinitionBuilderAddInput(op, *input);
    for (const char *const *output = form->outputs; *output; output++)
        TF.OpDefinitionBuilderAddOutput(op, *output);
    TF.OpDefinitionBuilderSetIsStateful(op, true); /* each call has another result */
    TF.OpDefinitionBuilderSetShapeInferenceFunction(op, infer_nothing);
    TF.RegisterOpDefinition(op, status);
    if (!is_fine(status, name))
        return false;
    TF_KernelBuilder *kernel = TF.NewKernelBuilder(name, "CPU", create, form->compute, destroy);
    TF.RegisterKernelBuilder(name, kernel, status);
    return is_fine(status, name);
}

/* Look everything up that `TF` names. */
static bool find_tensorflow(void)
{
    void *library = dlopen(FRAMEWORK, RTLD_NOW | RTLD_NOLOAD);
    if (!library) {
        snprintf(why_not, sizeof why_not, "this TensorFlow has no %s", FRAMEWORK);
        return false;
    }
#define FIND(name)                                                                                 \
    do {                                                                                           \
        *(void **)&TF.name = dlsym(library, "TF_" #name);                                          \
        if (!TF.name) {                                                                            \
            snprintf(why_not, sizeof why_not, "this TensorFlow has no TF_%s", #name);              \
            return false;                                                                          \
        }                                                                                          \
    } while (0)
    FIND(NewStatus);
    FIND(DeleteStatus);
    FIND(SetStatus);
    FIND(GetCode);
    FIND(NewTensor);
    FIND(AllocateTensor);
    FIND(DeleteTensor);
    FIND(TensorData);
    FIND(TensorByteSize);
    FIND(NewOpDefinitionBuilder);
    FIND(OpDefinitionBuilderAddAttr);
    FIND(OpDefinitionBuilderAddInput);
    FIND(OpDefinitionBuilderAddOutput);
    FIND(OpDefinitionBuilderSetIsStateful);
    FIND(OpDefinitionBuilderSetShapeInferenceFunction);
    FIND(ShapeInferenceContextSetUnknownShape);
    FIND(RegisterOpDefinition);
    FIND(NewKernelBuilder);
    FIND(RegisterKernelBuilder);
    FIND(OpKernelConstruction_GetAttrInt64);
    FIND(OpKernelConstruction_Failure);
    FIND(NumOutputs);
    FIND(ExpectedOutputDataType);
    FIND(GetInput);
    FIND(SetOutput);
    FIND(OpKernelContext_Failure);
    return true;
}

/* When it is opened: tf.load_op_library() makes a Python function of each op that
 * is registered meanwhile. */
__attribute__((constructor)) static void add_ops(void)
{
    if (!find_tensorflow())
        return;
    TF_Status *status = TF.NewStatus();
    size_t ops = sizeof FORMS / sizeof FORMS[0], added = 0;
    while (added < ops && add_op(&FORMS[added], status))
        added++;
    if (added == ops)
        why_not[0] = '\0';
    TF.DeleteStatus(status);
}

/* Connect the ops to the feeds of this process. Returns why they cannot be used, or
 * an empty string. */
PUBLIC const char *ringfeed_connect(const struct rf_feed_calls *feed_calls)
{
    calls = feed_calls;
    return why_not;
}
